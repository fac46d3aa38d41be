"""The page of the command line names every flag and mode."""

from absl import flags

from bertjax import launch
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs/reference/command_line.md").read_text()


def test_the_page_names_every_flag():
    own = flags.FLAGS.flags_by_module_dict()[launch.__name__]
    assert len(own) > 20
    assert [flag.name for flag in own if f"`--{flag.name}" not in PAGE and flag.name != "run_config"] == []


def test_the_page_names_every_mode():
    assert [mode for mode in launch.MODES if f"| `{mode}`" not in PAGE] == []
