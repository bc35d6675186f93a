#!/usr/bin/env python3
"""Runs the job of a GitHub workflow as a runner does: the steps with `run`, and composite actions.

    workflow.py WORKFLOW ACTION-FOLDER

Steps that use `actions/*` are left out. ACTION-FOLDER stands for every other action. Variables and
outputs pass between steps by the files that GITHUB_ENV, GITHUB_PATH and GITHUB_OUTPUT name. Exit
code: 0 if all steps pass, 1 if one fails, 2 for something that this program does not know.
"""
import os
import re
import subprocess
import sys
import tempfile

import yaml

SHELLS = {None: ["bash", "-e"], "bash": ["bash", "--noprofile", "--norc", "-eo", "pipefail"]}
STEP_KEYS = {"id", "name", "run", "shell", "env", "if", "uses", "with", "timeout-minutes"}


def unknown(what):
    print(f"workflow.py: unknown: {what}", file=sys.stderr)
    sys.exit(2)


def expand(text, names):
    """Replaces each expression by its value."""

    def value(match):
        name = match.group(1)
        return names[name] if name in names else unknown(f"expression {name}")

    return re.sub(r"\$\{\{ *([\w.-]+) *\}\}", value, str(text))


def read_pairs(path):
    with open(path, encoding="utf-8") as file:
        return dict(line.rstrip("\n").split("=", 1) for line in file)


class Job:
    def __init__(self, action):
        self.action = action
        self.env = dict(os.environ)
        self.names = {"runner.os": "Linux", "runner.arch": "X64"}
        self.passes = True

    def run(self, step, names):
        """Runs one step with `run`; returns its outputs."""
        with tempfile.TemporaryDirectory() as folder:
            files = {name: os.path.join(folder, name) for name in ("ENV", "PATH", "OUTPUT")}
            for path in files.values():
                open(path, "w", encoding="utf-8").close()
            own = {name: expand(text, names) for name, text in step.get("env", {}).items()}
            own |= {f"GITHUB_{name}": path for name, path in files.items()}
            own["GITHUB_ACTION_PATH"] = self.action
            script = os.path.join(folder, "script")
            with open(script, "w", encoding="utf-8") as file:
                file.write(expand(step["run"], names))
            limit = step.get("timeout-minutes", 360) * 60
            command = SHELLS[step.get("shell")] + [script]
            try:
                code = subprocess.run(command, env=self.env | own, timeout=limit).returncode
            except subprocess.TimeoutExpired:
                code = f"none after {limit} s"
            if code != 0:
                print(f"step {step.get('name', step.get('id'))!r}: exit code {code}", flush=True)
                self.passes = False
            self.env |= read_pairs(files["ENV"])
            with open(files["PATH"], encoding="utf-8") as file:
                for line in file:
                    self.env["PATH"] = line.rstrip("\n") + ":" + self.env["PATH"]
            return read_pairs(files["OUTPUT"])

    def use(self, step):
        """Runs the composite action; returns its outputs."""
        with open(os.path.join(self.action, "action.yml"), encoding="utf-8") as file:
            action = yaml.safe_load(file)
        given = step.get("with", {})
        if strange := set(given) - set(action["inputs"]):
            unknown(f"inputs {strange}")
        names = {
            f"inputs.{name}": expand(given.get(name, about["default"]), self.names)
            for name, about in action["inputs"].items()
        }
        for inner in action["runs"]["steps"]:
            for name, value in self.run(inner, names).items():
                names[f"steps.{inner['id']}.outputs.{name}"] = value
            if not self.passes:
                return {}
        return {name: expand(about["value"], names) for name, about in action["outputs"].items()}

    def step(self, step):
        if strange := set(step) - STEP_KEYS:
            unknown(f"keys of a step: {strange}")
        if step.get("uses", "").startswith("actions/"):
            return
        if not self.passes and step.get("if") != "always()":
            return
        print(f"-- {step.get('name') or step.get('uses')}", flush=True)
        outputs = self.use(step) if "uses" in step else self.run(step, self.names)
        for name, value in outputs.items():
            self.names[f"steps.{step.get('id')}.outputs.{name}"] = value


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        workflow = yaml.safe_load(file)
    job = Job(os.path.abspath(sys.argv[2]))
    (description,) = workflow["jobs"].values()
    for step in description["steps"]:
        job.step(step)
    sys.exit(0 if job.passes else 1)


main()
