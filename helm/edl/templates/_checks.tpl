{{/* What a schema cannot say. Each template gives problems, one sentence a line. */}}

{{/*
Values that contradict each other. Takes the root context.
*/}}
{{- define "edl.checks.values" -}}
{{- $classes := .Values.priorityClasses -}}
{{- range $key := list "high" "low" }}
{{- $name := (get $classes $key).name }}
{{- if hasPrefix "system-" $name }}
priorityClasses.{{ $key }}.name is {{ $name }}: Kubernetes keeps names that begin with system- for its own classes.
{{- end }}
{{- end }}
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
{{- if has .namespace (list "kube-system" "kube-public" "kube-node-lease") }}
The namespace {{ .namespace }} is the cluster's own, and admission policies leave it out: give jobs a namespace of theirs.
{{- else if and .create (eq .namespace $.Release.Namespace) }}
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
{{- include "edl.checks.sharedFiles" . }}
{{- end }}

{{/*
Teams that have the same files, or of which one has those of the other among its own. Takes the root context.
*/}}
{{- define "edl.checks.sharedFiles" -}}
{{- $before := list }}
{{- range $team := (include "edl.teams" . | fromJson).teams }}
{{- with include "edl.volumeAddress" .volume }}
{{- $address := . }}
{{- $directory := printf "%s/" (trimSuffix "/" .) }}
{{- range $before }}
{{- $overlap := or (hasPrefix .directory $directory) (hasPrefix $directory .directory) }}
{{- if and $overlap (ne .namespace $team.namespace) (not (and .shared $team.volume.shared)) }}
The volumes of namespaces {{ .namespace }} ({{ .address }}) and {{ $team.namespace }} ({{ $address }}) have files in common, which jobs of both could read and delete: give each a directory of its own, or set volume.shared to true for both.
{{- end }}
{{- end }}
{{- $before = append $before (dict "namespace" $team.namespace "shared" $team.volume.shared "address" $address "directory" $directory) }}
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
