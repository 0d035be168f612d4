"""One job as one release: what the submitter of the chart ``edl-job`` decides, and what it does to a namespace.

A release has submitter Jobs (one; two for a moment during an upgrade; one a date with ``schedule``). Each submits one
job, follows it to its end, and ends as it ended. The master Job is owned by the submitter Job, so that whatever removes
the latter (uninstall, upgrade, the history of a CronJob) removes the job. Every step may be broken off at any moment,
and two pods of one submitter Job may run at once; so nothing is remembered in a process: ``release_view`` looks,
``submitter_decision`` decides, and what is then done may be done twice.

What the chart gives (``edl-role submit SPEC`` in the image ``edl/submitter``):

===========================  ==========================================================================================
environment variable         meaning
===========================  ==========================================================================================
EDL_RELEASE                  name of the release; without it the pod does what ``edl submit SPEC --yes --watch`` does
EDL_SUBMITTER_JOB            name of the submitter Job: ``metadata.labels['batch.kubernetes.io/job-name']`` of the pod
EDL_SUBMITTER_UID            its uid: ``metadata.labels['batch.kubernetes.io/controller-uid']`` of the pod
EDL_SCHEDULED                ``true`` in the Jobs of a CronJob, else absent or ``false``
EDL_RESUME                   optional: ``latest`` or the id of a run to go on with; not together with EDL_SCHEDULED
===========================  ==========================================================================================

Submitter Jobs carry the labels ``edl.dev/role=submitter`` and ``app.kubernetes.io/instance=<release>`` (the Jobs of a
CronJob from its jobTemplate), their pods too, and the annotation ``edl.dev/revision=<number of the release>`` in the
Job's metadata, not in the template. They must not carry ``edl.dev/job``. The newer of two is the one that was created
later (a rollback brings back an old revision number; Argo always has 1); the revision decides within one second.
The submitter itself writes the annotation ``edl.dev/submitted=<uid of the master Job>`` on its Job.

The master Job gets ``app.kubernetes.io/instance=<release>`` and an ownerReference to the submitter Job. Of a scheduled
release it is named ``<name>-<minutes>``, where the minutes are what the CronJob controller put at the end of the Job's
name (8 digits; 8 of a digest after a name of another form): names have at most 31 characters then.

Exit codes, for the Job's podFailurePolicy (``FailJob`` on 1 and 2, ``Ignore`` on DisruptionTarget; all else is tried
again with a new pod, which goes on where this one was):

===  ====================================================================================
0    the job is done; or another submitter has replaced this one, which touched nothing
1    the job failed, its master could not start, or somebody deleted it
2    bad input, or refused by the cluster: nothing was created
75   the API server was away for too long, or something of an earlier job does not go
143  told to end (SIGTERM): the job goes on
===  ====================================================================================

Rights: those of the ClusterRole ``edl-data-scientist`` in the namespace, nothing else.

May import: the rest of edl.cluster.kubernetes, edl.jobfile, edl.core. Never: printing, exiting (edl.cli does).
"""
