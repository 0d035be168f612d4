"""The command ``elasticdl``: command lines of ElasticDL's users become job files of EDL.

``flags`` has every flag with what it becomes, ``parser`` reads command lines as ElasticDL's client does, ``values``
reads its small languages (resources, volumes, parameters), ``job_spec`` makes a JobSpec, and ``commands`` and ``zoo``
go on with what ``edl run``, ``edl submit`` and ``edl zoo`` do. Nothing outside of this package knows ElasticDL's flags,
and nothing in it decides about a job: what the job file cannot say is refused here, by the flag's name.
"""
