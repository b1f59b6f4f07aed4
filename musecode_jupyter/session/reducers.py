"""All reducers of the fold, gathered from the floors that own them."""

from __future__ import annotations

from typing import Any

from musecode_jupyter.agents.claims.state import ClaimsReducer
from musecode_jupyter.agents.crew_state import CrewReducer
from musecode_jupyter.agents.critiques.batch_state import BatchesReducer
from musecode_jupyter.agents.critiques.state import CritiquesReducer
from musecode_jupyter.agents.economy import EconomyReducer
from musecode_jupyter.agents.follow_ups import FollowUpsReducer
from musecode_jupyter.agents.landing.state import MergesReducer
from musecode_jupyter.agents.mail.state import MailReducer
from musecode_jupyter.agents.roles.state import RolesReducer
from musecode_jupyter.agents.state import AgentsReducer
from musecode_jupyter.agents.tasks.state import TasksReducer
from musecode_jupyter.agents.verifier.state import ChecksReducer
from musecode_jupyter.guard.approvals import ApprovalsReducer
from musecode_jupyter.guard.ledger import LedgerReducer
from musecode_jupyter.guard.rules import RulesReducer
from musecode_jupyter.guard.tiers import TiersReducer
from musecode_jupyter.log.fold import Reducer
from musecode_jupyter.session.lineage import LineageReducer
from musecode_jupyter.skills.clause_state import ClausesReducer
from musecode_jupyter.skills.draft_state import DraftsReducer
from musecode_jupyter.skills.goal_state import GoalsReducer
from musecode_jupyter.skills.grill_state import GrillsReducer
from musecode_jupyter.skills.ground_state import GroundsReducer
from musecode_jupyter.skills.plan_state import PlansReducer
from musecode_jupyter.skills.progress_state import ProgressReducer
from musecode_jupyter.skills.queue_state import QueueReducer
from musecode_jupyter.tools.state import ToolsReducer
from musecode_jupyter.workspace.held_files import HeldFilesReducer
from musecode_jupyter.workspace.state import WorkspaceReducer


def all_reducers() -> list[Reducer[Any]]:
    """A fresh set, in the order of the floors."""
    return [
        LedgerReducer(),
        ApprovalsReducer(),
        RulesReducer(),
        TiersReducer(),
        ToolsReducer(),
        WorkspaceReducer(),
        HeldFilesReducer(),
        AgentsReducer(),
        MailReducer(),
        CrewReducer(),
        FollowUpsReducer(),
        RolesReducer(),
        ClaimsReducer(),
        EconomyReducer(),
        MergesReducer(),
        TasksReducer(),
        CritiquesReducer(),
        BatchesReducer(),
        ChecksReducer(),
        GoalsReducer(),
        ClausesReducer(),
        ProgressReducer(),
        QueueReducer(),
        GroundsReducer(),
        PlansReducer(),
        DraftsReducer(),
        GrillsReducer(),
        LineageReducer(),
    ]
