{{/*
Labels of every object, which may change from one version of the chart to the next.
*/}}
{{- define "edl-job.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "edl-job.identity" . }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/*
Annotations of every object: the common ones, and those of a dict. Takes a list: the root context, the dict.
*/}}
{{- define "edl-job.annotations" -}}
{{- with merge (deepCopy (index . 1)) (index . 0).Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/*
Labels by which the submitters of a release are found; they never change, so that they do not make a new Job.
*/}}
{{- define "edl-job.identity" -}}
app.kubernetes.io/name: {{ .Values.nameOverride | default .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: submitter
app.kubernetes.io/part-of: edl
edl.dev/role: submitter
{{- end -}}

{{/*
Name of the Job and of the ConfigMap. A Job cannot change, so what changes gets another name. Of a CronJob: it can, and
jobs of earlier times still mount the ConfigMap.
*/}}
{{- define "edl-job.name" -}}
{{- if .Values.schedule -}}
{{ .Release.Name }}-submit
{{- else -}}
{{- $spec := include "edl-job.jobSpec" (dict "root" . "config" "") | fromYaml | toJson -}}
{{ .Release.Name }}-submit-{{ printf "%s %s %s" (include "edl-job.job" .) $spec (toString .Values.submitter.rerun) | sha256sum | trunc 8 }}
{{- end -}}
{{- end -}}

{{- define "edl-job.image" -}}
{{- with .Values.submitter.image -}}
{{- with .registry | default $.Values.global.imageRegistry }}{{ . }}/{{ end -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
The Job that submits: its pod is started again until it says how the job ended.
  root: the context; config: name of the ConfigMap.
*/}}
{{- define "edl-job.jobSpec" -}}
{{- $submitter := .root.Values.submitter -}}
completions: 1
parallelism: 1
# Only the submitter's own verdict ends the Job. Whoever takes its pod changes nothing: the next one finds the job.
backoffLimit: 1000
podReplacementPolicy: Failed
podFailurePolicy:
  rules:
    - action: Ignore
      onPodConditions: [{type: DisruptionTarget, status: "True"}]
    # 1: the job failed. 2: it was refused
    - action: FailJob
      onExitCodes: {containerName: submitter, operator: In, values: [1, 2]}
{{- if and (not .root.Values.schedule) (not (kindIs "invalid" $submitter.ttlSecondsAfterFinished)) }}
ttlSecondsAfterFinished: {{ int64 $submitter.ttlSecondsAfterFinished }}
{{- end }}
template:
  metadata:
    labels:
      {{- with $submitter.podLabels }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
      {{- include "edl-job.identity" .root | nindent 6 }}
    {{- with $submitter.podAnnotations }}
    annotations:
      {{- toYaml . | nindent 6 }}
    {{- end }}
  spec:
    {{- include "edl-job.podSpec" . | nindent 4 }}
{{- end -}}

{{/*
The pod: what the `restricted` Pod Security Standard asks for, and a root filesystem that cannot be written.
*/}}
{{- define "edl-job.podSpec" -}}
{{- $submitter := .root.Values.submitter -}}
restartPolicy: Never
terminationGracePeriodSeconds: 10
serviceAccountName: {{ $submitter.serviceAccount }}
automountServiceAccountToken: true
enableServiceLinks: false
{{- with $submitter.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with concat .root.Values.global.imagePullSecrets ($submitter.image.pullSecrets | default list) | uniq }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- range $field := list "nodeSelector" "affinity" "topologySpreadConstraints" }}
{{- with get $submitter $field }}
{{ $field }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
tolerations:
  {{- with $submitter.tolerations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  # not the 300 s that a cluster adds: the next submitter only looks
  {{- range list "not-ready" "unreachable" }}
  - {key: node.kubernetes.io/{{ . }}, operator: Exists, effect: NoExecute, tolerationSeconds: 30}
  {{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: {{ int64 $submitter.runAs.user }}
  runAsGroup: {{ int64 $submitter.runAs.group }}
  fsGroup: {{ int64 $submitter.runAs.group }}
  seccompProfile: {type: RuntimeDefault}
containers:
  - name: submitter
    image: {{ include "edl-job.image" .root | quote }}
    imagePullPolicy: {{ $submitter.image.pullPolicy }}
    args: [submit, /etc/edl/spec/job.json]
    env:
      {{- range $name, $value := $submitter.env }}
      - {name: {{ $name }}, value: {{ $value | quote }}}
      {{- end }}
      {{- include "edl-job.environment" .root | nindent 6 }}
    resources:
      {{- toYaml $submitter.resources | nindent 6 }}
    securityContext:
      allowPrivilegeEscalation: false
      capabilities: {drop: [ALL]}
      readOnlyRootFilesystem: true
    # the last lines of a submission that was refused stand in the pod's status
    terminationMessagePolicy: FallbackToLogsOnError
    volumeMounts:
      - {name: spec, mountPath: /etc/edl/spec, readOnly: true}
      - {name: home, mountPath: /home/edl}
      - {name: tmp, mountPath: /tmp}
volumes:
  - name: spec
    configMap: {name: {{ .config | quote }}}
  - name: home
    emptyDir: {sizeLimit: 64Mi}
  - name: tmp
    emptyDir: {sizeLimit: 64Mi}
{{- end -}}

{{/*
What the submitter knows of its release; edl.ops.release says what follows from it.
*/}}
{{- define "edl-job.environment" -}}
- {name: EDL_RELEASE, value: {{ .Release.Name | quote }}}
- name: EDL_SUBMITTER_JOB
  valueFrom: {fieldRef: {fieldPath: "metadata.labels['batch.kubernetes.io/job-name']"}}
- name: EDL_SUBMITTER_UID
  valueFrom: {fieldRef: {fieldPath: "metadata.labels['batch.kubernetes.io/controller-uid']"}}
{{- if .Values.schedule }}
- {name: EDL_SCHEDULED, value: "true"}
{{- end }}
{{- with .Values.resume }}
- {name: EDL_RESUME, value: {{ . | quote }}}
{{- end }}
{{- end -}}
