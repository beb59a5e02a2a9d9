"""What tasks are written from: all of a document's text, of each kind that is read, and what is said where none is."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet.schema.errors import TaskError
from ajet_datagen.generation.documents import ENDS, read_document, read_passages
from ajet_datagen.tests.generation_fixtures import SEA, log_lines

DRAWN = 'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"'
WORDS = (
    'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main" '
    'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006" '
    'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math" '
    'xmlns:wps="http://schemas.microsoft.com/office/word/2010/wordprocessingShape"'
)
RELATED = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"


def a_pdf(*pages: Sequence[str]) -> bytes:
    """By hand: a page for each list of lines."""
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    bodies = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, lines in enumerate(pages):
        shown = " ".join(f"({line}) Tj 0 -14 Td" for line in lines)
        drawn = f"BT /F1 11 Tf 72 720 Td {shown} ET" if lines else "10 10 200 300 re f"
        resources = "<< /Font << /F1 3 0 R >> >>"
        bodies += [
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {5 + 2 * number} 0 R "
            f"/Resources {resources} >>",
            f"<< /Length {len(drawn)} >>\nstream\n{drawn}\nendstream",
        ]
    out, offsets = b"%PDF-1.4\n", []
    for number, body in enumerate(bodies, 1):
        offsets.append(len(out))
        out += f"{number} 0 obj\n{body}\nendobj\n".encode()
    table = "".join(f"{offset:010d} 00000 n \n" for offset in offsets)
    trailer = f"trailer\n<< /Size {len(bodies) + 1} /Root 1 0 R >>\nstartxref\n{len(out)}\n%%EOF\n"
    return out + f"xref\n0 {len(bodies) + 1}\n0000000000 65535 f \n{table}{trailer}".encode()


def a_word_file() -> bytes:
    from docx import Document

    document = Document()
    document.add_paragraph(SEA)
    document.add_table(1, 2).rows[0].cells[1].text = "cod"
    return saved(document)


def a_presentation() -> bytes:
    from pptx import Presentation

    slides = Presentation()
    slides.slides.add_slide(slides.slide_layouts[5]).shapes.title.text = SEA
    return saved(slides)


def saved(document: Any) -> bytes:
    out = BytesIO()
    document.save(out)
    return out.getvalue()


MAKE: dict[str, Callable[[], bytes]] = {
    "txt": SEA.encode,
    "md": f"# The sea\n\n{SEA}\n".encode,
    "markdown": SEA.encode,
    "rst": SEA.encode,
    "html": f"<html><script>no()</script><body><p>{SEA}</p></body></html>".encode,
    "htm": f"<p>{SEA}".encode,
    "pdf": lambda: a_pdf([SEA], ["Cod", "and herring"]),
    "docx": a_word_file,
    "pptx": a_presentation,
}


def text_of(folder: Path, name: str, data: bytes) -> str:
    (folder / name).write_bytes(data)
    return read_document(folder / name)


@pytest.mark.parametrize("kind", MAKE)
def test_documents_of_each_kind_are_read(tmp_path: Path, kind: str) -> None:
    text = text_of(tmp_path, f"sea.{kind}", MAKE[kind]())
    assert SEA in text and "no()" not in text
    assert ("cod" in text) == (kind == "docx") and ("and herring" in text) == (kind == "pdf")


def test_pages_of_a_pdf_are_passages(tmp_path: Path) -> None:
    (tmp_path / "sea.pdf").write_bytes(a_pdf(["The sea is deep."], ["The shore is flat."]))
    found = read_passages(tmp_path / "sea.pdf", size=20, split_by="paragraph")
    assert [(each.source, each.text) for each in found] == [
        ("sea.pdf", "The sea is deep."),
        ("sea.pdf", "The shore is flat."),
    ]


def test_a_pdf_that_is_scanned_is_said_to_be_and_a_page_is_warned_of(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"scan.pdf cannot be read: 2 of 2 pages have no text.*ocrmypdf"):
        text_of(tmp_path, "scan.pdf", a_pdf([], []))
    with log_lines("WARNING") as logged:
        assert text_of(tmp_path, "half.pdf", a_pdf([SEA], [])) == SEA
    assert len(logged) == 1 and "half.pdf: 1 of 2 pages" in logged[0] and "page 2" in logged[0]


def test_a_presentation_is_read_with_tables_groups_charts_diagrams_and_notes(tmp_path: Path) -> None:
    from pptx import Presentation
    from pptx.chart.data import CategoryChartData
    from pptx.enum.chart import XL_CHART_TYPE
    from pptx.opc.package import Part
    from pptx.opc.packuri import PackURI
    from pptx.util import Inches

    place = [Inches(1)] * 4
    slides = Presentation()
    slide = slides.slides.add_slide(slides.slide_layouts[5])
    slide.shapes.title.text = "Fish of the Baltic"
    table = slide.shapes.add_table(2, 2, *place).table
    for number, word in enumerate(("fish", "tonnes", "herring", "200")):
        table.cell(*divmod(number, 2)).text = word
    group = slide.shapes.add_group_shape()
    group.shapes.add_textbox(*place).text_frame.text = "in a group"
    group.shapes.add_group_shape().shapes.add_textbox(*place).text_frame.text = "in a group of a group"
    data = CategoryChartData()
    data.categories = ["1990", "2020"]
    data.add_series("Cod", (300, 20))
    slide.shapes.add_chart(XL_CHART_TYPE.COLUMN_CLUSTERED, *place, data)
    slide.notes_slide.notes_text_frame.text = "Say why cod went."
    model = f'<dgm:dataModel xmlns:dgm="urn:d" {DRAWN}><dgm:t><a:p><a:r><a:t>in a diagram</a:t></a:r></a:p></dgm:t>'
    diagram = Part(PackURI("/ppt/diagrams/data1.xml"), "application/xml", slides.part.package, b"")
    diagram._blob = f"{model}</dgm:dataModel>".encode()
    slide.part.relate_to(diagram, f"{RELATED}/diagramData")
    slides.slides.add_slide(slides.slide_layouts[5]).shapes.title.text = "The end"

    assert text_of(tmp_path, "fish.pptx", saved(slides)).split("\n") == [
        *("Fish of the Baltic", "fish | tonnes", "herring | 200", "in a group", "in a group of a group"),
        *("in a diagram", "Cod: 1990 300, 2020 20", "Say why cod went.", "", "The end"),
    ]


def test_a_word_file_is_read_with_all_that_holds_text(tmp_path: Path) -> None:
    from docx import Document
    from docx.opc.packuri import PackURI
    from docx.opc.part import Part
    from docx.oxml.parser import parse_xml

    def run(text: str) -> str:
        return f"<w:r><w:t>{text}</w:t></w:r>"

    def box(where: str) -> str:
        return f"<wps:txbx><w:txbxContent><w:p>{run(where)}</w:p></w:txbxContent></wps:txbx>"

    document = Document()
    body = document.element.body
    raw = [
        f"<w:p {WORDS}>{run('It was ')}<w:del><w:r><w:delText>never</w:delText></w:r></w:del><w:ins>{run('always')}"
        f"</w:ins><w:hyperlink>{run(' deep')}</w:hyperlink><m:oMath><m:r><m:t>, d=55</m:t></m:r></m:oMath></w:p>",
        f"<w:sdt {WORDS}><w:sdtContent><w:p>{run('in a control')}</w:p></w:sdtContent></w:sdt>",
        f"<w:p {WORDS}>{run('beside a box')}<w:r><mc:AlternateContent><mc:Choice>{box('in the box')}</mc:Choice>"
        f"<mc:Fallback>{box('in the box')}</mc:Fallback></mc:AlternateContent></w:r></w:p>",
    ]
    for number, each in enumerate(raw):
        body.insert(number, parse_xml(each))
    table = document.add_table(2, 2)
    for number, word in enumerate(("fish", "tonnes", "herring")):
        table.cell(*divmod(number, 2)).text = word
    table.cell(1, 1).add_table(1, 1).cell(0, 0).text = "200, says a table in a table"
    for section in (document.sections[0], document.add_section()):
        section.header.is_linked_to_previous = False
        section.header.paragraphs[0].text = "Report of 1990"
    document.sections[0].footer.paragraphs[0].text = "Not to be lent"
    note = f"<w:footnotes {WORDS}><w:footnote><w:p>{run('Counted by hand.')}</w:p></w:footnote></w:footnotes>"
    footnotes = Part(PackURI("/word/footnotes.xml"), "application/xml", note.encode(), document.part.package)
    document.part.relate_to(footnotes, f"{RELATED}/footnotes")

    assert text_of(tmp_path, "fish.docx", saved(document)).split("\n\n") == [
        *("It was always deep, d=55", "in a control", "beside a box", "in the box"),
        *("fish | tonnes", "herring | 200, says a table in a table"),
        *("Report of 1990", "Not to be lent", "Counted by hand."),
    ]


def test_a_page_is_read_with_its_title_tables_and_descriptions_of_images_and_without_code(tmp_path: Path) -> None:
    page = """<html><head><title>Fish</title><style>p {color: red}</style></head><body>
    <table><tr><th>fish</th><th>tonnes</th></tr><tr><td>herring</td><td>200</td></tr></table>
    <p>Seen: <img src="data:image/png;base64,AAAA" alt="a shoal of herring"> <script>let cod = 1</script></p>"""
    text = text_of(tmp_path, "fish.html", page.encode())
    assert text == "Fish\n\n| fish | tonnes\n\n| herring | 200\n\nSeen: a shoal of herring"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("marked.txt", "Über die Ostsee".encode("utf-8-sig")),
        ("wide.txt", "Über die Ostsee".encode("utf-16")),
        ("wide.md", b"\xfe\xff" + "Über die Ostsee".encode("utf-16-be")),
        ("wider.txt", "Über die Ostsee".encode("utf-32")),
        ("meta.html", '<meta charset="ISO-8859-1"><p>Über die Ostsee'.encode("cp1252")),
        (
            "http.html",
            '<meta http-equiv=x content="text/html; charset=windows-1252"><p>Über die Ostsee'.encode("cp1252"),
        ),
        ("xml.html", '<?xml version="1.0" encoding="koi8-r"?><p>Über die Ostsee'.replace("Ü", "").encode("koi8-r")),
        ("wrong.html", '<meta charset="utf-16"><p>Über die Ostsee'.encode()),
    ],
)
def test_encodings_that_a_file_tells_are_read(tmp_path: Path, name: str, data: bytes) -> None:
    assert text_of(tmp_path, name, data) == ("ber die Ostsee" if name == "xml.html" else "Über die Ostsee")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (
            "Über die Ostsee".encode("cp1252"),
            r"it is not utf-8 \(invalid continuation byte at byte 0\): save it as UTF-8",
        ),
        ("Ueber die Ostsee".encode("utf-16-le"), "many zero bytes, like UTF-16 without a byte order mark"),
        (b" \n", "bad.txt has no text"),
    ],
)
def test_an_encoding_is_not_guessed(tmp_path: Path, data: bytes, says: str) -> None:
    with pytest.raises(TaskError, match=says):
        text_of(tmp_path, "bad.txt", data)


@pytest.mark.parametrize("declared", ["base64", "of-nobody"])
def test_a_page_that_declares_no_encoding_of_text_is_said(tmp_path: Path, declared: str) -> None:
    with pytest.raises(TaskError, match=f"bad.html cannot be read.*{declared}"):
        text_of(tmp_path, "bad.html", f'<meta charset="{declared}"><p>{SEA}'.encode())


@pytest.mark.parametrize("kind", ["docx", "pptx", "pdf", "txt", "md", "html"])
def test_what_is_no_document_is_said(tmp_path: Path, kind: str) -> None:
    with pytest.raises(TaskError, match=f"bad.{kind} cannot be read"):
        text_of(tmp_path, f"bad.{kind}", b"\xff\xfe\x00 no document")


@pytest.mark.parametrize(
    ("kind", "part"),
    [("docx", "word/document.xml"), ("pptx", "ppt/slides/slide1.xml"), ("pptx", "ppt/presentation.xml")],
)
def test_an_office_file_whose_xml_is_damaged_is_said(tmp_path: Path, kind: str, part: str) -> None:
    damaged = tmp_path / f"bad.{kind}"
    with zipfile.ZipFile(BytesIO(MAKE[kind]())) as source, zipfile.ZipFile(damaged, "w") as target:
        for name in source.namelist():
            target.writestr(name, source.read(name)[: 99 if name == part else None])
    with pytest.raises(TaskError, match=f"bad.{kind} cannot be read"):
        read_document(damaged)


@given(
    text=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=400),
    size=st.integers(1, 60),
    split_by=st.sampled_from(sorted(ENDS)),
)
def test_passages_hold_all_of_a_text_and_are_no_longer_than_asked(
    tmp_path_factory: pytest.TempPathFactory, text: str, size: int, split_by: str
) -> None:
    file = tmp_path_factory.mktemp("text") / "a.txt"
    file.write_text("x" + text, encoding="utf-8")
    found = [passage.text for passage in read_passages(file, size=size, split_by=split_by)]
    assert all(0 < len(each) <= size for each in found)
    assert "".join("".join(found).split()) == "".join(("x" + text).split())
