{{/* What a schema cannot say. Each template gives problems, one sentence a line. */}}

{{/*
Values that contradict each other. Takes the root context.
*/}}
{{- define "edl.checks.values" -}}
{{- $classes := .Values.priorityClasses -}}
{{- if eq $classes.high.name $classes.low.name }}
priorityClasses.high and priorityClasses.low are both named {{ $classes.high.name }}: they must differ, or nothing is preempted.
{{- else if le (int64 $classes.high.value) (int64 $classes.low.value) }}
priorityClasses.high.value ({{ int64 $classes.high.value }}) must be above priorityClasses.low.value ({{ int64 $classes.low.value }}), or nothing is preempted.
{{- end }}
{{- $allowed := concat (list $classes.high.name $classes.low.name) .Values.admission.allowedPriorityClasses | uniq }}
{{- $seen := dict }}
{{- $volumes := dict }}
{{- range (include "edl.teams" . | fromJson).teams }}
{{- if hasKey $seen .namespace }}
Two teams have the namespace {{ .namespace }}: give each its own, or make them one.
{{- end }}
{{- $_ := set $seen .namespace true }}
{{- if and .create (eq .namespace $.Release.Namespace) }}
The namespace {{ .namespace }} is where this release itself is stored, so it cannot create it: set create to false for this team, or install the release elsewhere, such as in edl-system.
{{- end }}
{{- $team := . }}
{{- range $class, $_ := .quota }}
{{- if not (has $class $allowed) }}
The quota of namespace {{ $team.namespace }} names the PriorityClass {{ $class }}, which jobs may not use: {{ join ", " $allowed }}.
{{- end }}
{{- end }}
{{- include "edl.checks.volume" . }}
{{- if include "edl.volumeSource" .volume }}
{{- $volume := include "edl.volumeName" . }}
{{- with get $volumes $volume }}
The PersistentVolume of namespace {{ $team.namespace }} would be {{ $volume }}, like that of {{ . }}: choose another volume.claim for one of them.
{{- end }}
{{- $_ := set $volumes $volume .namespace }}
{{- end }}
{{- end }}
{{- end }}

{{/*
A volume of several sources, or of half a source. Takes a team.
*/}}
{{- define "edl.checks.volume" -}}
{{- $namespace := .namespace -}}
{{- with .volume -}}
{{- $sources := include "edl.volumeSources" . | splitList "," -}}
{{- if gt (len $sources) 1 }}
The volume of namespace {{ $namespace }} has several sources ({{ join ", " $sources }}): name one.
{{- end }}
{{- with .nfs }}
{{- if ne (empty .server) (empty .path) }}
The volume of namespace {{ $namespace }} needs both volume.nfs.server and volume.nfs.path.
{{- end }}
{{- end }}
{{- with .filestore }}
{{- $given := compact (list .volumeHandle .ip .share) | len }}
{{- if and $given (lt $given 3) }}
The volume of namespace {{ $namespace }} needs all of volume.filestore.volumeHandle, ip and share.
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/*
What the cluster lacks, or has otherwise. Nothing when there is no cluster to ask, as for helm template. Takes the root
context.
*/}}
{{- define "edl.checks.cluster" -}}
{{- if lookup "v1" "Namespace" "" "kube-system" }}
{{- include "edl.checks.clusterPart" . }}
{{- range (include "edl.teams" . | fromJson).teams }}
{{- $found := lookup "v1" "Namespace" "" .namespace | default dict }}
{{- $annotations := ($found.metadata | default dict).annotations | default dict }}
{{- if and .create $found (not (hasKey $annotations "meta.helm.sh/release-name")) }}
The namespace {{ .namespace }} exists, and no release made it: set create to false for this team, and it is used as it is.
{{- else if not (or .create $found (eq .namespace $.Release.Namespace)) }}
There is no namespace {{ .namespace }}: create it, or set create to true for this team.
{{- else }}
{{- include "edl.checks.claim" . }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/*
PriorityClasses and ClusterRoles. Takes the root context.
*/}}
{{- define "edl.checks.clusterPart" -}}
{{- if and (not .Values.cluster.create) (not (lookup "rbac.authorization.k8s.io/v1" "ClusterRole" "" "edl-job-master")) }}
There is no ClusterRole edl-job-master: cluster.create is false, so another release of this chart must be installed first.
{{- else }}
{{- range $key := list "high" "low" }}
{{- $class := get $.Values.priorityClasses $key }}
{{- $found := lookup "scheduling.k8s.io/v1" "PriorityClass" "" $class.name }}
{{- if not (and $.Values.cluster.create $.Values.priorityClasses.create $class.create) }}
{{- if not $found }}
There is no PriorityClass {{ $class.name }}, and this release does not create it: create it, or name another in priorityClasses.{{ $key }}.name.
{{- end }}
{{- else if $found }}
{{- if ne (int64 $found.value) (int64 $class.value) }}
The cluster has a PriorityClass {{ $class.name }} with the value {{ int64 $found.value }}, which cannot be changed: use it with priorityClasses.{{ $key }}.create=false and priorityClasses.{{ $key }}.value={{ int64 $found.value }}, or choose another priorityClasses.{{ $key }}.name.
{{- else if ne $found.preemptionPolicy ($class.preemptionPolicy | default "PreemptLowerPriority") }}
The cluster has a PriorityClass {{ $class.name }} with preemptionPolicy {{ $found.preemptionPolicy }}, which cannot be changed: use it with priorityClasses.{{ $key }}.create=false, or choose another priorityClasses.{{ $key }}.name.
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/*
The claim of a team, and what it is made from. Takes a team.
*/}}
{{- define "edl.checks.claim" -}}
{{- $team := . -}}
{{- with .volume -}}
{{- $found := lookup "v1" "PersistentVolumeClaim" $team.namespace .claim -}}
{{- if and .existing (not $found) }}
There is no claim {{ .claim }} in namespace {{ $team.namespace }}, and volume.existing says that there is: create it, or name a volume.storageClass.
{{- end }}
{{- if and .storageClass (not $found) (not (lookup "storage.k8s.io/v1" "StorageClass" "" .storageClass)) }}
There is no StorageClass {{ .storageClass }}, which the volume of namespace {{ $team.namespace }} names: `kubectl get storageclass` lists what the cluster has.
{{- end }}
{{- if and .storageClass $found (ne .storageClass ($found.spec.storageClassName | default "")) }}
The claim {{ .claim }} in namespace {{ $team.namespace }} has the StorageClass {{ $found.spec.storageClassName | default "\"\"" }}, which cannot be changed: keep it, or choose another name with volume.claim.
{{- end }}
{{- if and (include "edl.volumeSource" .) (not $found) }}
{{- $name := include "edl.volumeName" $team }}
{{- $volume := lookup "v1" "PersistentVolume" "" $name | default dict }}
{{- if eq (($volume.status | default dict).phase | default "") "Released" }}
The PersistentVolume {{ $name }} still belongs to a claim that is gone. So that the new claim gets it with all its data: kubectl patch pv {{ $name }} --type json -p '[{"op":"remove","path":"/spec/claimRef/uid"}]'
{{- end }}
{{- end }}
{{- end }}
{{- end }}
