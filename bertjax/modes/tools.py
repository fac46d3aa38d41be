"""The tools that modes call by name at the moment of use. A mode without a tool neither imports it nor needs it."""

import importlib
from collections.abc import Callable
from typing import Any

TOOLS = {
    "attention figure": "bertjax.tools.reporting.attention:drawer",
    "model card": "bertjax.tools.reporting.model_card:write",
    "evaluation page": "bertjax.tools.reporting.page:of_evaluation",
    "page libraries": "bertjax.tools.reporting.libraries:check",
    "planner": "bertjax.tools.planning.planner:run",
    "plan figure": "bertjax.tools.reporting.plan_chart:drawer",
    "prediction page": "bertjax.tools.reporting.predictions:write",
    "run result": "bertjax.tools.reporting.verdict:result",
    "run page": "bertjax.tools.reporting.page:write",
}


def tool(name: str) -> Callable[..., Any]:
    """Imports and returns the function that `TOOLS` names."""
    module, _, function = TOOLS[name].partition(":")
    return getattr(importlib.import_module(module), function)
