"""The exit codes of EDL's processes and commands, and what the master, a Job or a shell does about them.

====================  =======  =========================================================================================
process               code     what it means, and what follows
====================  =======  =========================================================================================
worker, PS            0        it had no work left, or shut down in order after SIGTERM; the master starts another one
                               where the job still wants one
worker, PS            1, 2     an error, which is in its log: the master counts a crash
any role              137      SIGKILL. Without a cause from the cluster the master takes it as a kill from outside
any role              143      SIGTERM before it could shut down in order: taken as a preemption
master                0        the job is over: the supervisor ends, the Job is Complete
master                1        it cannot continue, or on Kubernetes the job has failed: the supervisor or the Job starts
                               another one, unless the job has failed
master                143      SIGTERM; pods keep running, and another master continues
``edl-role``          2        usage: the container cannot start
submitter             0        the job is done, or another submitter has replaced this one
submitter             1, 2     failed, or refused: ``podFailurePolicy`` fails the Job
submitter             75, 143  the API server was away, or SIGTERM: the Job starts a new pod, which goes on
``edl``               0, 1, 2  done, job failed, bad input or usage
``edl wait, stop``    124      the time of ``--timeout`` is over
``edl``               130      Ctrl-C
``edl run``           141      the output was closed
``elasticdl``         1        as ``edl``, and for a line without a command
====================  =======  =========================================================================================

``edl.core.pod_lifecycle`` makes a pod's end of its code, ``edl.master.master_process`` has the codes of a master, and
``edl.ops.release`` those of the submitter.
"""

from __future__ import annotations

DONE_EXIT = 0
"""Done, or a job that is over and needs no other master."""
FAILED_EXIT = 1
"""The job failed, or the process cannot go on."""
BAD_INPUT_EXIT = 2
"""The job file, the model, the data or the command line is invalid."""
REFUSED_EXIT = 2
"""A submitter that would be refused again."""
ELASTICDL_USAGE_EXIT = 1
"""Of ``elasticdl``, for a line without a command: as ElasticDL's client."""
TRY_AGAIN_EXIT = 75
"""A submitter that a new pod continues; EX_TEMPFAIL of sysexits.h."""
TIMED_OUT_EXIT = 124
"""The exit code that timeout(1) uses too."""
INTERRUPTED_EXIT = 130
"""After Ctrl-C (SIGINT)."""
SIGKILL_EXIT = 137
"""After SIGKILL: sent by the kernel's OOM killer, by the kubelet or by a person. A process cannot catch it."""
OUTPUT_CLOSED_EXIT = 141
"""After SIGPIPE: the program that reads the output has closed it, such as ``edl events | head``."""
SIGTERM_EXIT = 143
"""After SIGTERM. A master that shuts down in order returns it, too, and never 0: the Job of a master that exits with 0
is Complete and is not started again. Workers and parameter servers that shut down in order end with 0."""
