{{/*
Ports and peers of a job's pods. The numbers are those of edl.cluster.kubernetes.names; platform/tests/install/test_network_flows.py
compares them. Policies select by role, never by job: a NetworkPolicy cannot say "the same value of edl.dev/job as mine".
*/}}

{{/* Port of masters and parameter servers for control. */}}
{{- define "edl.network.controlPort" -}}7070{{- end }}

{{/* Port of parameter servers for tensors, and of workers under AllReduce for the ring. */}}
{{- define "edl.network.bulkPort" -}}7071{{- end }}

{{/*
Selector of pods of jobs by role, of any job. Takes a list of roles.
*/}}
{{- define "edl.network.jobPods" -}}
matchExpressions:
  - {key: edl.dev/job, operator: Exists}
  {{- include "edl.network.roles" . | nindent 2 }}
{{- end }}

{{/*
One requirement of a selector: a role of the list. Takes a list of roles.
*/}}
{{- define "edl.network.roles" -}}
- {key: edl.dev/role, operator: In, values: [{{ join ", " . }}]}
{{- end }}

{{/*
What is wrong when a value is taken away with null: an empty list of a rule means all. Takes the value's name.
*/}}
{{- define "edl.network.open" -}}
networkPolicies.{{ . }} is not set: without it a rule would allow everything
{{- end }}

{{/*
Head of a policy. Takes a dict: root, team, name.
*/}}
{{- define "edl.network.head" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- include "edl.metadata" (dict "root" .root "name" .name "namespace" .team.namespace) | nindent 2 }}
{{- end }}
