"""The pages for those who come from AgentJet, AgentRL and AWorld: what a row names is there, under that name.

A row's second cell is its verdict. Of each row the third cell is checked, and of a row that says `same` the first one,
too, where it is spelled as a flag or a class: keys are keys of the schema with such values, flags are flags of the
command, classes import, files lie in the repository.
"""

from __future__ import annotations

import ast
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from ajet.cli.docs import cli_md
from ajet.config import load_experiment
from ajet.config.keys import dotted_keys
from ajet.config.schema import AjetConfig
from ajet.config.schema.base import walk
from tests.docs.snippets import ROOT
from tests.unit.test_config_agentjet import WHOLE

DOCS = ROOT / "docs"
PAGES = {"agentrl.md": 100, "agentjet.md": 30, "aworld.md": 15}
"""With how many names at least are checked of each: a page whose rows are read no more would pass all else."""
VERDICTS = {"same", "other", "better", "gone"}
REST = (DOCS / "configuration.md").read_text().split("## Accepted for older YAMLs")[1]
OLDER = {f"{section}.{key}".strip(".") for section, key in re.findall(r"\| `ajet\.?([\w.]*)` \| `(\w+)`", REST)}
OLDER |= set(re.findall(r"\| `ajet\.([\w.]+)` \|", REST))
"""Keys that are understood, by another name or without an effect."""
KEYS = {*dotted_keys()}
TAKEN = {".".join(path): field.annotation for path, field, _ in walk(AjetConfig)}
CALLED = re.compile(r"(?P<command>ajet(?: [a-z]+)*)(?P<rest>(?: .*)?)")
DOTTED = re.compile(r"(?P<key>[a-z_]+(?:\.[a-z_]+)+)(?:: (?P<value>.+))?")
CLASS = re.compile(r"(?:ajet|train)(?:\.\w+)+")
IMPORT = re.compile(r"from (?P<module>[\w.]+) import (?P<name>\w+)")
FILE = re.compile(r"[\w./]+/[\w.]+\.(?:md|yml|yaml|sh|py)")
AJETS = "## `ajet`\n"


def rows(page: str) -> list[tuple[str, str, str]]:
    """(there, verdict, here) of each row that has a verdict."""
    cells = [re.split(r"(?<!\\) \| ", line.strip()[2:-2]) for line in (DOCS / page).read_text().splitlines()]
    return [(each[0], each[1], each[2]) for each in cells if len(each) == 3 and each[1] in VERDICTS]


def commands() -> dict[str, str]:
    """A command's name to its section of the command line's page."""
    parts = re.split(r"^## `([^`]+)`\n", cli_md(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def is_there(name: str, known: dict[str, str]) -> bool | None:
    """Whether what is named exists; None for words that name nothing of the kind."""
    if name.startswith("--"):
        return all(f"`{flag}" in known["ajet"] for flag in re.findall(r"--[a-z-]+", name))
    if found := CALLED.fullmatch(name):
        words = found["command"]
        while words not in known and " " in words:
            words = words.rpartition(" ")[0]
        if words == "ajet" and found["command"] != "ajet":
            return found["command"] == "ajet train" and "--from-store" in known["ajet"] + known.get("ajet train", "")
        return words in known and all(f"`{flag}" in known[words] for flag in re.findall(r"--[a-z-]+", name))
    if found := IMPORT.fullmatch(name):
        return defines(found["module"], found["name"])
    if CLASS.fullmatch(name) and not name.startswith("ajet.services"):
        module, _, attribute = name.rpartition(".")
        return defines(module, attribute)
    if FILE.fullmatch(name):
        return (ROOT / name).exists()
    if name.startswith(("actor_rollout_ref", "launcher_record/")):
        return None
    if found := DOTTED.fullmatch(name):
        return found["key"].removeprefix("ajet.") in KEYS | OLDER
    return name in KEYS or None


def defines(module: str, name: str) -> bool:
    """Whether a module has a name, told from its source: importing what AWorld needs takes five seconds."""
    below = Path(*module.split("."))
    for path in (ROOT / below.with_suffix(".py"), ROOT / below / "__init__.py"):
        if path.exists():
            text = path.read_text()
            named = {getattr(node, "name", "") for node in ast.walk(ast.parse(text))}
            return name in named or re.search(rf"[\"']{name}[\"']|^{name}\b.*=", text, re.M) is not None
    return find_spec(module) is not None and name == "*"


@pytest.mark.parametrize("page", PAGES)
def test_what_a_row_names_is_there(page):
    known, checked, wrong = commands(), 0, []
    for there, verdict, here in rows(page):
        assert here.strip(), there
        for name in re.findall(r"`([^`]+)`", here):
            found = is_there(name, known)
            checked += found is not None
            if found is False:
                wrong.append(f"{there}: {name}")
        for name in re.findall(r"`([^`]+)`", there) if verdict == "same" else ():
            if CLASS.fullmatch(name) or (page == "agentjet.md" and name.startswith("--")):
                checked += 1
                if not is_there(name, known) and not understood(name):
                    wrong.append(f"{there}: {name}")
    assert not wrong
    assert checked >= PAGES[page], checked


def understood(flag: str) -> bool:
    """A companion of a run, or a flag that is answered with a sentence."""
    from ajet.cli.other_flags import NEEDLESS, SAME

    return flag.startswith("--with-") or flag in SAME or flag in NEEDLESS


def test_values_that_the_pages_give_to_keys_are_taken(tmp_path):
    """All of them, laid over a YAML one by one."""
    (tmp_path / "x.yaml").write_text("ajet: {model: {path: 'embedded:tiny-tools'}}\n")
    tried = 0
    for page in PAGES:
        for _, _, here in rows(page):
            for name in re.findall(r"`([^`]+)`", here):
                found = DOTTED.fullmatch(name)
                if found and found["value"] and found["key"].removeprefix("ajet.") in TAKEN:
                    given = f"{found['key'].removeprefix('ajet.')}={found['value']}"
                    if not re.search(r"[A-Z]|->", found["value"]):  # words in capitals stand for a person's own
                        load_experiment(tmp_path / "x.yaml", overrides=[given], backbone="debug")
                        tried += 1
    assert tried >= 15, tried


def test_each_flag_of_agentrls_page_and_scripts_has_a_row():
    """Those of its `src/configs.py` at 36c699e5, and of its two training scripts."""
    said = " ".join(there for there, _, _ in rows("agentrl.md"))
    lacking = [flag for flag in AGENTRL.split() if not re.search(rf"--{flag}\b", said)]
    assert not lacking


def test_each_key_of_agentjets_defaults_is_ours_or_has_a_row():
    keys = list(leaves(yaml.safe_load(WHOLE)["ajet"]))
    ours = [key for key in keys if key in KEYS or any(key == each or key.startswith(f"{each}.") for each in OLDER)]
    assert ours == keys and len(keys) > 120


def test_each_flag_of_agentjets_launcher_has_a_row():
    """Those of its `ajet/launcher.py` at 0052b4c5."""
    said = " ".join(there for there, _, _ in rows("agentjet.md"))
    assert [flag for flag in AGENTJET.split() if not re.search(rf"--{flag}(?![\w-])", said)] == []


def leaves(tree, prefix=""):
    for name, value in tree.items():
        yield from leaves(value, f"{prefix}{name}.") if isinstance(value, dict) else [f"{prefix}{name}"]


AGENTJET = """
backbone swarm-server conf exp-dir debug db bp breakpoint with-ray with-ray-cluster with-appworld with-deepfinance
with-webshop with-bfcl with-logview with-crafters skip-check-avail-gpu kill autokill prefix swarm-overwatch
"""
AGENTRL = """
trainer train_file max_pixels remove_experience drop_zero_advantage shift_labels db_connection_string
oss_connection_string enable_oss skip_non_positive_advantage model_name_or_path attention_implementation
output_router_logits trust_remote_code cpu_ram_efficient_loading torch_dtype tp_size pp_size ep_size cp_size
pad_to_multiple_of bypass_causal_mask_check enable_loss_parallel loss_seq_chunk_size activation_offloading
decoder_sparse_step remove_unused_columns pad_to_maximum dynamic_batching learning_rate epsilon epsilon_higher beta1
beta2 tune_vision adv_scaling max_tokens balance_sample token_level_loss out_of_date_decay importance_weight_cap_ratio
strict_in_bound log_entropy skip_length_normalization loss_calculater max_trained_count retrained_interval
minimal_advantage enable_sampling sync_sampling max_new_tokens max_prompt_tokens num_generations tool_call_parser
model_name inf_tp_size inf_ep_size max_concurrent_samples_per_process target_concurrency inf_mem_ratio top_k
presence_penalty frequency_penalty preferred_sampling_params resample_error_records mcp_server_name mcp_manager_url
mcp_auth_token max_turns min_turns repetition_early_stop_times enable_repetition_compress new_context agent_config_path
reserve_context_error_count efficient_rewarding compress_history weight_decay optim_args max_steps num_train_epochs
dataloader_drop_last dataloader_num_workers max_grad_norm logging_steps warmup_steps lr_scheduler_type bf16
per_device_train_batch_size gradient_accumulation_steps seed eval_strategy eval_steps run_name report_to
save_only_model save_steps dataloader_prefetch_factor accelerator_config output_dir config_file num_processes
machine_rank main_process_ip main_process_port num_machines
"""
