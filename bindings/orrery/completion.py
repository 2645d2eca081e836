"""`orrery completion SHELL`: a script that completes commands, options and their choices, made of the parser itself."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

_BASH = """# orrery: eval "$(orrery completion {shell})"
{head}_orrery() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} known=
  if ((COMP_CWORD == 1)); then
    known="{commands}"
  else
    case "${{COMP_WORDS[1]}} ${{COMP_WORDS[COMP_CWORD-1]}}" in
{choices}
    esac
    if [[ -z $known ]]; then
      case "${{COMP_WORDS[1]}}" in
{options}
      esac
    fi
  fi
  COMPREPLY=($(compgen -W "$known" -- "$word"))
  [[ $word == -* ]] || COMPREPLY+=($(compgen -f -- "$word"))
}}
complete -o filenames -F _orrery orrery ./orrery
"""
_HEADS = {"bash": "", "zsh": "autoload -Uz bashcompinit && bashcompinit\n"}
SHELLS = tuple(_HEADS)


def script(shell: str, parsers: Mapping[str, argparse.ArgumentParser], scenarios: tuple[str, ...]) -> str:
    """The script for a shell; `scenarios` are names that stand for files."""
    options, choices = [], []
    for command, parser in parsers.items():
        words = [option for action in parser._actions for option in action.option_strings]
        if any(action.dest == "file" for action in parser._actions):
            words += scenarios
        options.append(f'        {command}) known="{" ".join(words)}" ;;')
        for action in parser._actions:
            if action.choices and not isinstance(action.choices, dict):
                values = " ".join(map(str, action.choices))
                patterns = " | ".join(f'"{command} {word}"' for word in action.option_strings or (command,))
                choices.append(f'      {patterns}) known="{values}" ;;')
    return _BASH.format(shell=shell, head=_HEADS[shell], commands=" ".join(parsers), options="\n".join(options), choices="\n".join(choices))


__all__ = ["SHELLS", "script"]
