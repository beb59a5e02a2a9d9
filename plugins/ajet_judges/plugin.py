"""The plug-in descriptor, readable without loading the package's code."""

from __future__ import annotations

from ajet.config.plugin import JUDGES_PANEL, Command, ConfigKeys, Plugin, PluginPart

PLUGIN = Plugin(
    name="ajet_judges",
    about="model judges, rubrics written and applied by models, and checks of any judge",
    scorers={
        "agentcpm": "ajet_judges.model_judge:ModelJudge",
        "llm": "ajet_judges.model_judge:ModelJudge",
        "rubric": "ajet_judges.rubrics.judge:RubricScorer",
    },
    judges={
        "rubrics_auto_grader": PluginPart(
            "ajet_judges.opening:open_rubrics", prepare="ajet_judges.judging.rubrics:require_rubrics"
        )
    },
    fallback_judges=("ajet_judges.opening:open_ranking_models",),
    services=("ajet_judges.reachable:list_services",),
    commands={
        "rejudge": Command(
            "ajet_judges.cli.rejudge:rejudge",
            "Judge recorded episodes again, without model or environment. Writes tables; the record stays unchanged.",
            panel=JUDGES_PANEL,
        ),
        "judge": Command("ajet_judges.cli.judge:app", "Check judges before a run trusts them.", panel=JUDGES_PANEL),
    },
    config_keys=(ConfigKeys("task_judge", "ajet_judges.config:JudgeKeys"),),
    renamed={"ajet.task_judge.model_judge:ModelJudge": "ajet_judges.model_judge:ModelJudge"},
)
