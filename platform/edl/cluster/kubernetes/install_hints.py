"""How EDL is installed: the commands that remedies give admins, those of the README and of docs/operations.md."""

from __future__ import annotations


def helm_install_command(namespace: str) -> str:
    """The command that installs EDL in a cluster with one team; jobs are only taken from namespaces of its list."""
    return f'`helm install edl helm/edl -n edl-system --create-namespace --set "teams[0].namespace={namespace}"`'


HELM_ADD_TEAM_COMMAND = "`helm upgrade edl helm/edl -n edl-system --reset-then-reuse-values -f teams.yaml`"
"""The command for a team that joins others, with an entry more on the list in that file."""


def kustomize_install_command(namespace: str) -> str:
    """The command that installs the same without Helm."""
    return f"`kubectl apply -k kustomize/base -n {namespace}`"


def install_hint(namespace: str) -> str:
    """How what a namespace lacks is installed, in sentences."""
    return (
        f"An admin installs it: {helm_install_command(namespace)}. Where that release is there already, for other"
        f" teams, the namespace goes on its list of teams: {HELM_ADD_TEAM_COMMAND}. Without Helm:"
        f" {kustomize_install_command(namespace)}."
    )
