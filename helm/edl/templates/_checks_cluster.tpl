{{/* What the cluster has otherwise than the values say. Each template gives problems, one sentence a line. */}}

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
{{- if $found }}{{ include "edl.checks.accounts" . }}{{ end }}
{{- include "edl.checks.claim" . }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/*
ClusterRoles, admission policies and PriorityClasses. Takes the root context.
*/}}
{{- define "edl.checks.clusterPart" -}}
{{- $role := lookup "rbac.authorization.k8s.io/v1" "ClusterRole" "" "edl-job-master" }}
{{- if and (not .Values.cluster.create) (not $role) }}
There is no ClusterRole edl-job-master: cluster.create is false, so another release of this chart must be installed first.
{{- else }}
{{- if and (not .Values.cluster.create) (include "edl.checks.goes" (list . $role)) }}
The ClusterRoles and admission policies belong to this release, and Helm would delete them under the teams of every release: leave cluster.create true, or, to hand them to another release, first run `kubectl annotate clusterroles,validatingadmissionpolicies,validatingadmissionpolicybindings --selector app.kubernetes.io/instance={{ .Release.Name }} helm.sh/resource-policy=keep`.
{{- end }}
{{- include "edl.checks.classesThatGo" . }}
{{- range $key := list "high" "low" }}
{{- include "edl.checks.class" (list $ $key) }}
{{- end }}
{{- end }}
{{- end }}

{{/*
Names of the PriorityClasses that are rendered, as JSON. Takes the root context.
*/}}
{{- define "edl.checks.classes" -}}
{{- $names := list -}}
{{- with .Values.priorityClasses -}}
{{- if and $.Values.cluster.create .create -}}
{{- range list .high .low }}{{ if .create }}{{ $names = append $names .name }}{{ end }}{{ end -}}
{{- end -}}
{{- end -}}
{{- toJson $names -}}
{{- end }}

{{/*
PriorityClasses that Helm would delete in this upgrade, under pods that other releases and people make. Takes the root
context.
*/}}
{{- define "edl.checks.classesThatGo" -}}
{{- $rendered := include "edl.checks.classes" . | fromJsonArray }}
{{- range (lookup "scheduling.k8s.io/v1" "PriorityClass" "" "").items }}
{{- if and (not (has .metadata.name $rendered)) (include "edl.checks.goes" (list $ .)) }}
The PriorityClass {{ .metadata.name }} belongs to this release, and Helm would delete it, after which no new pod could name it: first upgrade with priorityClasses.keep=true and nothing else changed, then it stays.
{{- end }}
{{- end }}
{{- end }}

{{/*
Whether an upgrade that does not render an object of the cluster deletes it: "true", or empty. Helm asks the object that
is there, so `keep` helps only when an earlier upgrade has put it there. Takes a list: the root context, the object.
*/}}
{{- define "edl.checks.goes" -}}
{{- $release := (index . 0).Release }}
{{- $said := (index . 1).metadata.annotations | default dict }}
{{- $owner := list (get $said "meta.helm.sh/release-namespace") (get $said "meta.helm.sh/release-name") }}
{{- if and $release.IsUpgrade (eq (join "/" $owner) (printf "%s/%s" $release.Namespace $release.Name)) (ne (get $said "helm.sh/resource-policy") "keep") }}{{ true }}{{ end }}
{{- end }}

{{/*
One PriorityClass. Takes a list: the root context; high or low.
*/}}
{{- define "edl.checks.class" -}}
{{- $root := index . 0 }}
{{- $key := index . 1 }}
{{- $class := get $root.Values.priorityClasses $key }}
{{- $policy := $class.preemptionPolicy | default "PreemptLowerPriority" }}
{{- $found := lookup "scheduling.k8s.io/v1" "PriorityClass" "" $class.name }}
{{- if not (has $class.name (include "edl.checks.classes" $root | fromJsonArray)) }}
{{- if not $found }}
There is no PriorityClass {{ $class.name }}, and this release does not create it: create it, or name another in priorityClasses.{{ $key }}.name.
{{- end }}
{{- else if $found }}
{{- $goes := include "edl.checks.goes" (list $root $found) }}
{{- if and $goes (ne (int64 $found.value) (int64 $class.value)) }}
The PriorityClass {{ $class.name }} of this release has the value {{ int64 $found.value }}, which cannot be changed: leave priorityClasses.{{ $key }}.value at {{ int64 $found.value }}, or first upgrade with priorityClasses.keep=true, and then choose another priorityClasses.{{ $key }}.name.
{{- else if ne (int64 $found.value) (int64 $class.value) }}
The cluster has a PriorityClass {{ $class.name }} with the value {{ int64 $found.value }}, which cannot be changed: use it with priorityClasses.{{ $key }}.create=false and priorityClasses.{{ $key }}.value={{ int64 $found.value }}, or choose another priorityClasses.{{ $key }}.name.
{{- else if and $goes (ne $found.preemptionPolicy $policy) }}
The PriorityClass {{ $class.name }} of this release has preemptionPolicy {{ $found.preemptionPolicy }}, which cannot be changed: leave it, or first upgrade with priorityClasses.keep=true, and then choose another priorityClasses.{{ $key }}.name.
{{- else if ne $found.preemptionPolicy $policy }}
The cluster has a PriorityClass {{ $class.name }} with preemptionPolicy {{ $found.preemptionPolicy }}, which cannot be changed: use it with priorityClasses.{{ $key }}.create=false, or choose another priorityClasses.{{ $key }}.name.
{{- end }}
{{- end }}
{{- end }}

{{/*
Accounts that a team brings along. Takes a team.
*/}}
{{- define "edl.checks.accounts" -}}
{{- $team := . }}
{{- if not .accounts.create }}
{{- range list "edl-job-master" "edl-none" "edl-data-scientist" }}
{{- if not (lookup "v1" "ServiceAccount" $team.namespace .) }}
There is no ServiceAccount {{ . }} in namespace {{ $team.namespace }}, and accounts.create is false: create it, or set accounts.create to true for this team.
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
{{- $source := include "edl.volumeSource" . -}}
{{- if and .existing (not $found) }}
There is no claim {{ .claim }} in namespace {{ $team.namespace }}, and volume.existing says that there is: create it, or name a volume.storageClass.
{{- end }}
{{- if and .storageClass (not $found) (not (lookup "storage.k8s.io/v1" "StorageClass" "" .storageClass)) }}
There is no StorageClass {{ .storageClass }}, which the volume of namespace {{ $team.namespace }} names: `kubectl get storageclass` lists what the cluster has.
{{- end }}
{{- if and (or .storageClass $source) $found (ne (.storageClass | default "") ($found.spec.storageClassName | default "")) }}
The claim {{ .claim }} in namespace {{ $team.namespace }} has the StorageClass {{ $found.spec.storageClassName | default "\"\"" }}, which cannot be changed: keep it, or choose another name with volume.claim.
{{- end }}
{{- if $source }}
{{- $name := include "edl.volumeName" $team }}
{{- $volume := lookup "v1" "PersistentVolume" "" $name | default dict }}
{{- $place := include "edl.volumePlace" ($volume.spec | default dict) }}
{{- if and $volume (ne $place (include "edl.volumePlace" (fromYaml $source))) }}
The PersistentVolume {{ $name }} stands for {{ $place | default "something else" }}, which cannot be changed: keep it, or choose another name with volume.claim.
{{- else if and (not $found) (eq (($volume.status | default dict).phase | default "") "Released") }}
The PersistentVolume {{ $name }} still belongs to a claim that is gone. So that the new claim gets it with all its data: kubectl patch pv {{ $name }} --type json -p '[{"op":"remove","path":"/spec/claimRef/uid"}]'
{{- end }}
{{- end }}
{{- end }}
{{- end }}
