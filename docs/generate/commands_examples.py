"""Examples of the command line for the reference. A test parses each of them with the command's own options."""

from __future__ import annotations

from collections.abc import Mapping

EXAMPLES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "run": (
        ("edl run model_zoo/mnist/job.yaml", "as the job file says"),
        ("edl run model_zoo/mnist/job.yaml --workers 4 --set train.epochs=1", "with overrides"),
        ("edl run model_zoo/mnist/job.yaml --resume", "continue the newest run"),
    ),
    "submit": (
        ("edl submit job.yaml", "shows the plan and asks"),
        ("edl submit job.yaml --yes --watch", "for scripts: exits 0 when the job is done"),
        ("edl submit job.yaml --dry-run server", "would the cluster take it?"),
        ("edl submit job.yaml --resume", "continue the newest run"),
    ),
    "list": (("edl list -n team-a", "the jobs of a namespace"),),
    "status": (("edl status mnist --watch", "until the job has ended"),),
    "logs": (
        ("edl logs mnist -f", "the master: Loss and Evaluation"),
        ("edl logs mnist -r worker -i 2", "one worker"),
        ("edl logs mnist -r worker --stored", "also for workers that are gone"),
    ),
    "events": (("edl events mnist -f", "pods that start and end, checkpoints, evaluations"),),
    "why": (("edl why mnist", "reasons and remedies"),),
    "wait": (
        ("edl wait mnist --for started --timeout 10m", "until the first step is done"),
        ("edl wait mnist --for workers=4", "until exactly four workers have started"),
    ),
    "scale": (
        ("edl scale mnist --max 8", "nothing restarts"),
        ("edl scale digits --local --max 3", "a run of this machine"),
    ),
    "stop": (("edl stop mnist --wait", "`edl submit job.yaml --resume` continues"),),
    "delete": (("edl delete mnist --yes", "files on volumes are kept"),),
    "clean": (
        ("edl clean --keep 3", "keep the newest 3 ended runs of each job"),
        ("edl clean mnist/r2 --yes", "one run, for scripts"),
    ),
    "top": (("edl top mnist", "needs the cluster's metrics server"),),
    "doctor": (
        ("edl doctor -n team-a", "can jobs run there?"),
        ("edl doctor --image registry.example.com/team/mnist:1", "can its nodes pull the image?"),
    ),
    "inject": (
        ("edl inject worker:KILL@50% -- edl run job.yaml", "kill a worker when half of the records are done"),
        ("edl inject ps:STOP@200 ps:CONT@260 -- edl run job.yaml --workers 3", "several faults, by step"),
    ),
    "evaluate": (
        ("edl evaluate job.yaml --from r3", "data.validation, with the newest checkpoint of run r3"),
        ("edl evaluate job.yaml --from export/model.keras --json", "an exported model; metrics as JSON"),
        ("edl evaluate job.yaml --from mnist -n team-a --watch", "on a cluster, the job's newest trained run"),
    ),
    "predict": (("edl predict job.yaml --output predictions --from r3", "with the model of run r3"),),
    "sql": (
        (
            'edl sql --demo "SELECT * FROM employee LABEL income INTO my_elasticdl_model"',
            "a model of the demo's table, by name",
        ),
        ("edl sql report.sql --database sqlite:///shop.db", "the statements of a file"),
        ('edl sql "SHOW MODELS"', "the models, with their metrics"),
    ),
    "render": (("edl render job.yaml -n team-a > mnist.yaml", "the manifests, for kubectl create"),),
    "validate": (
        ("edl validate job.yaml --set workers.max=8", "all errors at once, with lines"),
        ("edl validate job.yaml --model", "also try the model, feed and the first minibatch"),
    ),
    "schema": (("edl schema > edl.schema.json", "for an editor"),),
    "checkpoint ls": (
        ("edl checkpoint ls mnist --verify", "the newest run of a job; all checksums are verified"),
        ("edl checkpoint ls /mnt/edl/team-a/mnist", "a job of a cluster, its volume mounted here"),
    ),
    "checkpoint inspect": (
        ("edl checkpoint inspect mnist", "the newest one: do the values look right?"),
        ("edl checkpoint inspect mnist/r3 -c 4 --json", "an older one of run r3, as JSON"),
    ),
    "checkpoint export": (
        ("edl checkpoint export mnist mnist.npz", "for NumPy"),
        ("edl checkpoint export mnist mnist.safetensors --slots", "with the optimizer's slot variables"),
    ),
    "data cp": (
        ("edl data cp demo-data/mnist fileserver-claim:/mnist --image edl/submitter:dev", "to a volume"),
        ("edl data cp fileserver-claim:/models/mnist models", "and back"),
    ),
    "data ls": (("edl data ls fileserver-claim:/ -R", "with subdirectories"),),
    "data stats": (
        ("edl data stats trips.parquet", "a table for people"),
        ("edl data stats trips.parquet --columns km,tip --html page.html", "with histograms"),
        ("edl data stats trips.parquet --json", "for programs and `edl.layers`"),
        ("edl data stats 's3://bucket/trips/*.parquet' --workers 4", "a job whose workers share the records"),
    ),
    "data schema": (("edl data schema trips.parquet --label tip", "the section data of a job file"),),
    "data convert": (
        ("edl data convert trips.csv --to parquet --out trips --plan", "what would be written"),
        ("edl data convert trips.csv --to parquet --out trips", "each file is read again and counted"),
    ),
    "data mnist": (("edl data mnist demo-data/mnist --source digits --records 12000", "without a network"),),
    "data iris": (("edl data iris demo-data/iris", "rows with a header"),),
    "data clicks": (
        ("edl data clicks demo-data/clicks", "for model_zoo/deepfm, wide_and_deep, dcn and xdeepfm"),
        ("edl data clicks log --records 1000000 --vocabulary 26000", "each id often enough to be learned"),
    ),
    "zoo init": (("edl zoo init my_zoo", "a model to start from"),),
    "zoo build": (("edl zoo build my_zoo --image registry.example.com/team/mnist:1", "with the Docker engine"),),
    "zoo push": (("edl zoo push registry.example.com/team/mnist:1", "where the cluster pulls it"),),
}
"""By command: lines, each with a few words on what it is for."""
