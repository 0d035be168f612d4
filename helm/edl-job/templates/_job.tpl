{{/*
The chart's own values, which are no part of the job.
*/}}
{{- define "edl-job.own" -}}
[submitter, schedule, timeZone, concurrencyPolicy, suspend, startingDeadlineSeconds, successfulJobsHistoryLimit,
 failedJobsHistoryLimit, resume, podDisruptionBudgets, nameOverride, commonLabels,
 commonAnnotations, extraObjects, global]
{{- end -}}

{{/*
The job as JSON. A file that is given as values stays what it is, nulls included.
*/}}
{{- define "edl-job.job" -}}
{{- $own := include "edl-job.own" . | fromYamlArray -}}
{{- $job := dict "name" .Release.Name -}}
{{- range $field, $value := .Values }}
{{- if not (has $field $own) }}{{ $_ := set $job $field $value }}{{ end }}
{{- end }}
{{- toRawJson $job -}}
{{- end -}}

{{/*
Name of the job.
*/}}
{{- define "edl-job.jobName" -}}
{{- .Values.name | default .Release.Name -}}
{{- end -}}

{{/*
Paths of the whole numbers that Helm has rounded: it reads a values file's numbers as 64-bit floats.
*/}}
{{- define "edl-job.rounded" -}}
{{- $path := .path -}}
{{- if kindIs "map" .value -}}
{{- range $name, $value := .value }}{{ include "edl-job.rounded" (dict "path" (printf "%s.%s" $path $name) "value" $value) }}{{ end -}}
{{- else if kindIs "slice" .value -}}
{{- range $index, $value := .value }}{{ include "edl-job.rounded" (dict "path" (printf "%s[%d]" $path $index) "value" $value) }}{{ end -}}
{{- else if kindIs "float64" .value -}}
{{- /* from 1e21 on they are written with an exponent, as they came */ -}}
{{- if or (and (ge .value 9007199254740992.0) (lt .value 1e21)) (and (le .value -9007199254740992.0) (gt .value -1e21)) -}}
{{ $path }}{{ " " }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
What cannot be submitted under this name and with these values fails here, before anything is installed.
*/}}
{{- define "edl-job.check" -}}
{{- if not .Values.model -}}
{{- fail "no job is given: the values of this chart are a job file, so give one with -f job.yaml (it needs at least model, data.training and image)" -}}
{{- end -}}
{{- if not .Values.image -}}
{{- fail "image is missing: name the image that every role of the job runs, such as --set image=registry.example/mnist:1; `edl zoo build` makes one with your model" -}}
{{- end -}}
{{- if not (.Values.data | default dict).training -}}
{{- fail "data.training is missing: name the files or directories of records to train on, as the pods see them" -}}
{{- end -}}
{{- if not .Values.submitter.image.repository -}}
{{- fail "submitter.image.repository is missing: name the submitter's image as the nodes get it, such as --set submitter.image.repository=registry.example/submitter; `make images` builds it" -}}
{{- end -}}
{{- include "edl-job.checkWorkers" . -}}
{{- $strategy := (.Values.strategy | default dict).name -}}
{{- if and (eq (toString $strategy) "AllReduce") (not (kindIs "invalid" (.Values.podDisruptionBudgets | default dict).ps)) -}}
{{- fail "podDisruptionBudgets.ps is for parameter servers, and a job of strategy AllReduce has none: leave it out" -}}
{{- end -}}
{{- $name := include "edl-job.jobName" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$" $name) -}}
{{- fail (printf "the job would have the release's name, and %q is no job name (1 to 40 of a-z, 0-9 and -, beginning with a letter and not ending with -): set name" $name) -}}
{{- end -}}
{{- if .Values.schedule -}}
{{- include "edl-job.checkSchedule" . -}}
{{- if .Values.resume -}}
{{- fail "resume goes on with one run, and schedule starts many: give one of the two" -}}
{{- end -}}
{{- range .Values.podDisruptionBudgets }}{{ if not (kindIs "invalid" .) -}}
{{- fail "podDisruptionBudgets select the pods of one job by its name, and each job of a schedule has its own; leave them out" -}}
{{- end }}{{ end -}}
{{- if gt (len $name) 31 -}}
{{- fail (printf "the name of a scheduled job can have 31 characters, since each run adds 9 of its own; %q has %d: set name" $name (len $name)) -}}
{{- end -}}
{{- if gt (len .Release.Name) 45 -}}
{{- fail (printf "the name of a release with a schedule can have 45 characters, since its CronJob is named <release>-submit and can have 52; %q has %d" .Release.Name (len .Release.Name)) -}}
{{- end -}}
{{- else if gt (len .Release.Name) 47 -}}
{{- fail (printf "the name of a release can have 47 characters, since its Job is named <release>-submit-<hash> and can have 63; %q has %d" .Release.Name (len .Release.Name)) -}}
{{- end -}}
{{- $own := include "edl-job.own" . | fromYamlArray -}}
{{- range $field, $value := .Values }}{{ if not (has $field $own) -}}
{{- with include "edl-job.rounded" (dict "path" $field "value" $value) | trim -}}
{{- fail (printf "%s: Helm rounds whole numbers of 2^53 and more when it reads a values file; give them with --set" (replace " " ", " .)) -}}
{{- end -}}
{{- end }}{{ end -}}
{{- include "edl-job.checkAccount" . -}}
{{- end -}}

{{/*
What a schema cannot say of workers; the defaults are those of a job file.
*/}}
{{- define "edl-job.checkWorkers" -}}
{{- $workers := merge (deepCopy (.Values.workers | default dict)) (dict "min" 1 "max" 2) -}}
{{- if lt (int $workers.max) (int $workers.min) -}}
{{- fail (printf "workers.max: found %d, must be at least workers.min, %d" (int $workers.max) (int $workers.min)) -}}
{{- end -}}
{{- end -}}

{{/*
A pod without its account is never made, and the release would wait in vain. Only asked where there is a cluster to ask.
*/}}
{{- define "edl-job.checkAccount" -}}
{{- if lookup "v1" "ServiceAccount" .Release.Namespace "default" -}}
{{- if not (lookup "v1" "ServiceAccount" .Release.Namespace .Values.submitter.serviceAccount) -}}
{{- fail (printf "the namespace %q has no ServiceAccount %q: an admin makes it with the chart edl, or name another in submitter.serviceAccount" .Release.Namespace .Values.submitter.serviceAccount) -}}
{{- end -}}
{{- end -}}
{{- end -}}
