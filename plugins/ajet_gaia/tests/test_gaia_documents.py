"""Document servers over files made here, and over hostile ones."""

from __future__ import annotations

import io
import json
import resource
import zipfile
from pathlib import Path

import docx
import openpyxl
import pptx
from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

from ajet_gaia.servers import (
    documents_csv,
    documents_docx,
    documents_pdf,
    documents_pptx,
    documents_txt,
    excel,
)
from ajet_gaia.servers.mcp import answer_call
from ajet_gaia.servers.settings import Settings
from ajet_gaia.servers.tool import FunctionTool

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c4944415408d763f8cfc000000301010018dd8db0"
    "0000000049454e44ae426082"
)


class Server:
    """A server's tools in this process, called as over the wire."""

    def __init__(self, module, root: Path, **more) -> None:
        self.settings = Settings(root=root, **more)
        self.tools = {tool.name: tool for tool in map(FunctionTool, module.tools(self.settings))}

    def says(self, name: str, **arguments) -> str:
        answer = answer_call(self.tools, name, arguments, self.settings, "")
        assert not answer.get("isError"), answer
        return answer["content"][0]["text"]

    def fails(self, name: str, **arguments) -> str:
        answer = answer_call(self.tools, name, arguments, self.settings, "")
        assert answer.get("isError"), answer
        return answer["content"][0]["text"]


def test_csv_rows_statistics_and_shapes(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("name;size\nana;1\nbob;3\n", encoding="utf-8")
    server = Server(documents_csv, tmp_path)
    said = server.says("extract_csv_content", file_path="t.csv", generate_visualizations=True)
    assert "| ana | 1 |" in said and '"mean": 2.0' in said and "#" in said
    told = json.loads(server.says("extract_csv_content", file_path="t.csv", output_format="json", max_rows=1))
    assert told["header"] == ["name", "size"] and told["rows"] == [["ana", "1"]] and "only the first 1" in told["note"]
    assert "no encoding" in server.fails("extract_csv_content", file_path="t.csv", encoding="nope")


def test_a_line_of_a_gigabyte_is_bounded(tmp_path: Path) -> None:
    with (tmp_path / "wide.csv").open("wb") as file:
        file.truncate(1_000_000_000)  # a hole: nothing is on the disk
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    said = Server(documents_csv, tmp_path).fails("extract_csv_content", file_path="wide.csv")
    assert "more than 4000000 characters" in said
    Server(documents_txt, tmp_path).fails("extract_text_content", file_path="wide.csv")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


def test_txt_encodings_and_bounds(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("Grüße".encode("latin-1"))
    (tmp_path / "b.txt").write_text("x" * 5000)
    (tmp_path / "c.bin").write_bytes(b"\0\xff" * 50)
    (tmp_path / "d.txt").write_bytes("café".encode("latin-1"))  # as UTF-8 it ends within a character
    (tmp_path / "e.txt").write_bytes(b"x" + "é".encode() * 3000)  # of which as many bytes are read as cut one
    server = Server(documents_txt, tmp_path, max_bytes=1000)
    assert server.says("extract_text_content", file_path="a.txt") == "Grüße"
    assert server.says("extract_text_content", file_path="d.txt") == "café"
    assert server.says("extract_text_content", file_path="e.txt").startswith("xéé")
    assert "no encoding" in server.fails("extract_text_content", file_path="a.txt", encoding="hex")
    assert "only the first 800 characters" in server.says("extract_text_content", file_path="b.txt")[-200:]
    assert len(server.says("extract_text_content", file_path="b.txt").encode()) < 1100
    assert "no text file" in server.fails("extract_text_content", file_path="c.bin")


def test_docx_keeps_order_and_writes_pictures_below_the_folder(tmp_path: Path) -> None:
    document = docx.Document()
    document.add_heading("Plan", 1)
    document.add_paragraph("First")
    table = document.add_table(rows=1, cols=2)
    table.cell(0, 0).text, table.cell(0, 1).text = "a", "b"
    document.add_paragraph("Last", style="List Bullet")
    document.add_picture(io.BytesIO(PNG))
    document.sections[0].header.paragraphs[0].text = "Secret head"
    document.save(str(tmp_path / "d.docx"))
    server = Server(documents_docx, tmp_path)
    said = server.says(
        "extract_docx_content",
        file_path="d.docx",
        extract_images=True,
        extract_headers_footers=True,
        include_structure=True,
    )
    assert said.index("# Plan") < said.index("First") < said.index("| a | b |") < said.index("- Last")
    assert "Secret head" in said and list((tmp_path / "d_images").iterdir())


def test_pptx_slides_tables_and_notes(tmp_path: Path) -> None:
    show = pptx.Presentation()
    slide = show.slides.add_slide(show.slide_layouts[5])
    slide.shapes.title.text = "Results"
    slide.shapes.add_textbox(0, 0, 100, 100).text_frame.text = "It rose."
    slide.notes_slide.notes_text_frame.text = "Say it slowly"
    show.save(str(tmp_path / "s.pptx"))
    said = Server(documents_pptx, tmp_path).says("extract_pptx_content", file_path="s.pptx", include_structure=True)
    assert "## Slide 1: Results" in said and "It rose." in said and "Say it slowly" in said and "1. Results" in said


def test_pdf_text_by_page(tmp_path: Path) -> None:
    writer = PdfWriter()
    for text in ("One page", "Two pages"):
        page = writer.add_blank_page(200, 200)
        font = {"/Type": "/Font", "/Subtype": "/Type1", "/BaseFont": "/Helvetica"}
        named = DictionaryObject({NameObject(key): NameObject(value) for key, value in font.items()})
        fonts = DictionaryObject({NameObject("/F1"): named})
        page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
        stream = DecodedStreamObject()
        stream.set_data(f"BT /F1 12 Tf 10 100 Td ({text}) Tj ET".encode())
        page[NameObject("/Contents")] = stream
    writer.write(str(tmp_path / "p.pdf"))
    server = Server(documents_pdf, tmp_path)
    said = server.says("convert_document_to_markdown", file_path="p.pdf", paginate=True)
    assert said.index("page 1") < said.index("One page") < said.index("page 2") < said.index("Two pages")
    (tmp_path / "bad.pdf").write_bytes(b"%PDF-1.4 nothing")
    assert server.fails("convert_document_to_markdown", file_path="bad.pdf")


def test_zip_bombs_are_refused_before_they_are_unpacked(tmp_path: Path) -> None:
    with (
        zipfile.ZipFile(tmp_path / "bomb", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("word/document.xml", "w", force_zip64=True) as member,
    ):
        for _ in range(101):
            member.write(bytes(1_000_000))
    (tmp_path / "text").write_text("no archive")
    word, show, book = (Server(module, tmp_path) for module in (documents_docx, documents_pptx, excel))
    for path, why in (("bomb", "unpacks to too much"), ("text", "no Office file")):
        assert why in word.fails("extract_docx_content", file_path=path)
        assert why in show.fails("extract_pptx_content", file_path=path)
        assert why in book.fails("get_workbook_metadata", filepath=path)


def test_excel_writes_reads_and_summarises(tmp_path: Path) -> None:
    server = Server(excel, tmp_path)
    server.says("create_workbook", filepath="w.xlsx")
    rows = [["kind", "price"], ["a", 1], ["b", 2], ["a", 5]]
    server.says("write_data_to_excel", filepath="w.xlsx", sheet_name="Sheet", data=rows)
    told = json.loads(server.says("read_data_from_excel", filepath="w.xlsx", sheet_name="Sheet"))
    assert told["rows"] == rows
    sheet = {"filepath": "w.xlsx", "sheet_name": "Sheet"}
    server.says("create_pivot_table", **sheet, data_range="A1:B4", rows=["kind"], values=["price"], agg_func="sum")
    summary = json.loads(server.says("read_data_from_excel", filepath="w.xlsx", sheet_name="Sheet_pivot"))
    assert summary["rows"] == [["kind", "price"], ["a", 6], ["b", 2]]
    server.says("apply_formula", **sheet, cell="B5", formula="SUM(B2:B4)")
    server.says("format_range", **sheet, start_cell="A1", end_cell="B1", bold=True, bg_color="FFFF00")
    server.says("create_chart", **sheet, data_range="A1:B4", chart_type="bar", target_cell="D2", title="Prices")
    server.says("create_table", **sheet, data_range="A1:B4")
    server.says("copy_range", **sheet, source_start="A1", source_end="B1", target_start="A8")
    server.says("delete_range", **sheet, start_cell="A2", end_cell="B2")
    server.says("insert_rows", **sheet, start_row=1, count=2)
    server.says("merge_cells", **sheet, start_cell="A1", end_cell="B1")
    assert json.loads(server.says("get_merged_cells", **sheet)) == ["A1:B1"]
    server.says("unmerge_cells", **sheet, start_cell="A1", end_cell="B1")
    server.says("copy_worksheet", filepath="w.xlsx", source_sheet="Sheet", target_sheet="Copy")
    server.says("rename_worksheet", filepath="w.xlsx", old_name="Copy", new_name="Other")
    server.says("delete_worksheet", filepath="w.xlsx", sheet_name="Other")
    saved = openpyxl.load_workbook(tmp_path / "w.xlsx")
    assert saved.sheetnames == ["Sheet", "Sheet_pivot"] and saved["Sheet"]["A3"].value == "kind"
    assert "already" in server.fails("create_worksheet", filepath="w.xlsx", sheet_name="Sheet")
    assert "no sheet Nope" in server.fails("read_data_from_excel", filepath="w.xlsx", sheet_name="Nope")
    assert "more than" in server.fails("merge_cells", **sheet, start_cell="A1", end_cell="XFD1048576")
    assert "well formed" in server.fails("apply_formula", **sheet, cell="C1", formula='SUM("')
    assert "is there already" in server.fails("create_workbook", filepath="w.xlsx")
