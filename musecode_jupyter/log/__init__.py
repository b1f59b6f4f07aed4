"""What happened: the durable event log of a session, its blobs, and the state folded from it."""

from musecode_jupyter.log.blobs import BlobStore
from musecode_jupyter.log.eventlog import EventLog
from musecode_jupyter.log.events import BlobRef, Event
from musecode_jupyter.log.fold import Fold, Reducer
from musecode_jupyter.log.redaction import RedactionStream, Redactor
from musecode_jupyter.log.verify import Problem, VerifyReport, verify

__all__ = [
    "BlobRef",
    "BlobStore",
    "Event",
    "EventLog",
    "Fold",
    "Problem",
    "RedactionStream",
    "Redactor",
    "Reducer",
    "VerifyReport",
    "verify",
]
