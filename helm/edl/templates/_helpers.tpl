{{/* What the templates share. A team is always one of the list that "edl.teams" gives. */}}

{{/*
Labels of every object. Takes the root context.
*/}}
{{- define "edl.labels" -}}
{{- $own := dict
      "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-")
      "app.kubernetes.io/name" (.Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-")
      "app.kubernetes.io/instance" (trunc 63 .Release.Name)
      "app.kubernetes.io/version" .Chart.AppVersion
      "app.kubernetes.io/part-of" "edl"
      "app.kubernetes.io/managed-by" .Release.Service -}}
{{- toYaml (merge $own .Values.commonLabels) -}}
{{- end }}

{{/*
The name of an image, whole. Takes a dict: root; image, with registry, repository, tag and digest.
*/}}
{{- define "edl.image" -}}
{{- with .image.registry | default .root.Values.global.imageRegistry }}{{ . }}/{{ end }}{{ .image.repository }}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ .image.tag | default .root.Chart.AppVersion }}{{ end -}}
{{- end }}

{{/*
The whole metadata of an object. Takes a dict:
  root         the root context
  name         name of the object
  namespace    for what lives in one
  labels       more labels (the chart's own win)
  annotations  more annotations (they win over commonAnnotations)
*/}}
{{- define "edl.metadata" -}}
{{- $labels := merge (include "edl.labels" .root | fromYaml) (.labels | default dict) -}}
{{- $annotations := merge (deepCopy (.annotations | default dict)) .root.Values.commonAnnotations -}}
name: {{ .name | quote }}
{{- with .namespace }}
namespace: {{ . | quote }}
{{- end }}
labels:
  {{- toYaml $labels | nindent 2 }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/*
Annotations of what outlives the release: Helm leaves it alone, and so does Argo CD, which asks for its own.
*/}}
{{- define "edl.keep" -}}
helm.sh/resource-policy: keep
argocd.argoproj.io/sync-options: Prune=false,Delete=false
{{- end }}

{{/*
Whether an uninstall is checked first, by a pod: "true", or empty. Takes the root context.
*/}}
{{- define "edl.uninstallCheck" -}}
{{- if and .Values.cluster.create .Values.tests.image.repository }}{{ true }}{{ end }}
{{- end }}

{{/*
Annotations of what belongs to the cluster, as YAML of a dict: kept, where nothing looks before an uninstall whether other
teams need it. Takes the root context.
*/}}
{{- define "edl.clusterKeep" -}}
{{- if include "edl.uninstallCheck" . }}{}{{ else }}{{ include "edl.keep" . }}{{ end }}
{{- end }}

{{/*
The spec of a pod that runs `edl doctor`, but for its account. Takes a dict: root; args, of the command.
*/}}
{{- define "edl.testPod" -}}
{{- $tests := .root.Values.tests -}}
# a quota of the class counts it, and policies refuse a pod without one
priorityClassName: {{ $tests.priorityClassName | default .root.Values.priorityClasses.low.name | quote }}
{{- with concat .root.Values.global.imagePullSecrets $tests.image.pullSecrets | uniq }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- range $field := list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" }}
{{- with get $tests $field }}
{{ $field }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
restartPolicy: Never
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 1000
  runAsGroup: 1000
  seccompProfile:
    type: RuntimeDefault
containers:
  - name: edl
    image: {{ include "edl.image" (dict "root" .root "image" $tests.image) | quote }}
    imagePullPolicy: {{ $tests.image.pullPolicy }}
    command: [edl, doctor]
    args:
      {{- toYaml .args | nindent 6 }}
    resources:
      requests: {cpu: 100m, memory: 128Mi, ephemeral-storage: 16Mi}
      limits: {memory: 256Mi, ephemeral-storage: 256Mi}
    securityContext:
      allowPrivilegeEscalation: false
      capabilities:
        drop: [ALL]
      readOnlyRootFilesystem: true
{{- end }}

{{/*
All teams, complete: teamDefaults with what the team itself says on top. Without teams it is one: the release's namespace
as it is, of which only EDL's own pods are isolated (ownPodsOnly), since other things may live there. Takes the root context.

    range (include "edl.teams" $ | fromJson).teams
*/}}
{{- define "edl.teams" -}}
{{- $teams := list -}}
{{- range .Values.teams -}}
  {{- $team := dict "create" false "labels" dict "annotations" dict | merge (deepCopy $.Values.teamDefaults) -}}
  {{- if include "edl.volumeSources" .volume -}}
    {{- $_ := set $team "volume" (omit $team.volume "existing" "storageClass" "nfs" "filestore") -}}
  {{- end -}}
  {{- include "edl.overlay" (list $team (deepCopy .)) -}}
  {{- $teams = append $teams $team -}}
{{- end -}}
{{- if not .Values.teams -}}
  {{- $team := dict "namespace" .Release.Namespace "create" false "ownPodsOnly" true "labels" dict "annotations" dict -}}
  {{- $teams = list (merge $team (deepCopy .Values.teamDefaults)) -}}
{{- end -}}
{{- dict "teams" $teams | toJson -}}
{{- end }}

{{/*
Writes a dict over another, in place, level by level; lists are replaced whole. Sprig's mergeOverwrite would keep what is
to become false or empty. Takes a list: what is changed, what is written over it.
*/}}
{{- define "edl.overlay" -}}
{{- $below := index . 0 -}}
{{- range $key, $value := index . 1 -}}
  {{- if and (kindIs "map" $value) (kindIs "map" (get $below $key)) -}}
    {{- include "edl.overlay" (list (get $below $key) $value) -}}
  {{- else -}}
    {{- $_ := set $below $key $value -}}
  {{- end -}}
{{- end -}}
{{- end }}

{{/*
The sources that a volume names, separated by commas: existing, storageClass, nfs, filestore; normally one or none.
*/}}
{{- define "edl.volumeSources" -}}
{{- $found := list -}}
{{- with . -}}
  {{- if .existing }}{{ $found = append $found "existing" }}{{ end -}}
  {{- if .storageClass }}{{ $found = append $found "storageClass" }}{{ end -}}
  {{- if (.nfs | default dict).server }}{{ $found = append $found "nfs" }}{{ end -}}
  {{- if (.filestore | default dict).volumeHandle }}{{ $found = append $found "filestore" }}{{ end -}}
{{- end -}}
{{- join "," $found -}}
{{- end }}

{{/*
The field of an account that names Secrets for pulling images. Takes a team's accounts.
*/}}
{{- define "edl.imagePullSecrets" -}}
{{- with .imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- end }}
