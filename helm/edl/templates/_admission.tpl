{{/* CEL that the admission policies share. Everything that is wrong with a request is refused with 403 and one sentence. */}}

{{/*
Which requests a policy is about: those of identities that have the right to VERB on jobs.edl.dev in the namespace. No such
API exists: the ClusterRoles grant the verb, so that a policy holds whoever is bound to one, however that was done. Who may
read the namespace's Secrets anyway, as admins may, gains nothing by what the policies refuse, and is let through.

One expression, the cheapest test first, so that controllers' requests never reach the authorizer. Takes the verb.
*/}}
{{- define "edl.admission.whom" -}}
failurePolicy: Fail
matchConditions:
  - name: has-the-role
    expression: >-
      !(request.userInfo.username in ['system:kube-controller-manager', 'system:kube-scheduler', 'system:apiserver']) &&
      !request.userInfo.username.startsWith('system:node:') &&
      !request.userInfo.username.startsWith('system:serviceaccount:kube-system:') &&
      authorizer.group('edl.dev').resource('jobs').namespace(request.namespace).check({{ . | squote }}).allowed() &&
      !authorizer.group('').resource('secrets').namespace(request.namespace).check('get').allowed()
{{- end }}

{{/*
Where no team lives, and where the cluster's own Leases are renewed all the time.
*/}}
{{- define "edl.admission.namespaces" -}}
namespaceSelector:
  matchExpressions:
    - {key: kubernetes.io/metadata.name, operator: NotIn, values: [kube-system, kube-public, kube-node-lease]}
{{- end }}

{{/*
The job whose master asks, as variables.job; empty unless the token is bound to a pod of a master. Kubernetes writes the
pod's name into the token, and only a Job edl-JOB-master makes pods of such a name with a token: see edl-data-scientist-jobs.
*/}}
{{- define "edl.admission.master" -}}
- name: asker
  expression: request.userInfo.?extra[?'authentication.kubernetes.io/pod-name'].orValue([''])[0]
- name: job
  expression: >-
    variables.asker.matches('^edl-[a-z0-9-]+-master-[a-z0-9]{5}$')
    ? variables.asker.substring(4, variables.asker.size() - '-master-12345'.size()) : ''
{{- end }}

{{/*
That there is such a job.
*/}}
{{- define "edl.admission.bound" -}}
- expression: variables.job != ''
  reason: Forbidden
  message: The rights of a job's master are for tokens that Kubernetes has bound to the pod of a master.
{{- end }}

{{/*
Variables about a pod that is created, or will be of a Job's template: account, containers, volumes, and the Secrets that it
may use. Needs variables.job. Takes a dict: root; pod, the expression of its spec.
*/}}
{{- define "edl.admission.pod" -}}
- name: pod
  expression: {{ .pod }}
- name: account
  expression: variables.pod.?serviceAccountName.orValue('default')
- name: containers
  expression: variables.pod.containers + variables.pod.?initContainers.orValue([])
- name: volumes
  expression: variables.pod.?volumes.orValue([])
- name: secrets
  expression: >-
    {{ .root.Values.admission.allowedSecrets | toJson }} +
    (variables.job == '' ? [] : ['edl-' + variables.job + '-token'])
{{- end }}

{{/*
What holds for every such pod: its priority, its volumes, nothing of its node's, and that no Secret gets into it but its
job's. Volumes are a list of what is allowed, so that a kind of volume that Kubernetes brings in future is refused until
somebody has looked at it. Takes the root context.
*/}}
{{- define "edl.admission.rules" -}}
{{- $classes := include "edl.admission.classes" . | fromJsonArray -}}
{{- $also := .Values.admission.allowedSecrets -}}
{{- $token := "the token of its own job, edl-<job>-token" -}}
{{- $secrets := empty $also | ternary (printf "no Secret but %s" $token) (printf "only %s and the Secrets %s" $token (join ", " $also)) -}}
{{- $kinds := concat (list "configMap" "downwardAPI" "emptyDir" "persistentVolumeClaim" "projected" "secret") .Values.admission.allowedVolumes | uniq | sortAlpha -}}
{{- $paths := .Values.admission.allowedHostPaths -}}
# a pod without a class would be counted by no quota of a class
- expression: variables.pod.?priorityClassName.orValue('') in {{ $classes | toJson }}
  reason: Forbidden
  message: {{ printf "A pod must name a PriorityClass, which is one of %s." (join ", " $classes) | quote }}
- expression: >-
    variables.volumes.all(v, has(v.hostPath) || {{ range $index, $kind := $kinds }}{{ if $index }} || {{ end }}has(v.{{ $kind }}){{ end }})
  reason: Forbidden
  message: {{ printf "A pod may mount volumes of no kinds but %s; an admin opens others by the chart's value admission.allowedVolumes." (join ", " $kinds) | quote }}
- expression: >-
    variables.volumes.all(v, !has(v.hostPath) || {{ $paths | toJson }}.exists(p,
      v.hostPath.path == p || v.hostPath.path.startsWith(p.endsWith('/') ? p : p + '/')))
  reason: Forbidden
  message: {{ printf "A pod may mount %s of its node; an admin opens paths by the chart's value admission.allowedHostPaths." (empty $paths | ternary "no path" (printf "no path but %s" (join ", " $paths))) | quote }}
- expression: >-
    !variables.pod.?hostNetwork.orValue(false) && !variables.pod.?hostPID.orValue(false) &&
    !variables.pod.?hostIPC.orValue(false) &&
    variables.containers.all(c, !c.?securityContext.?privileged.orValue(false))
  reason: Forbidden
  message: A pod may have neither its node's network, processes or IPC nor privileged containers.
- expression: >-
    variables.volumes.all(v,
      has(v.secret) ? v.secret.?secretName.orValue('') in variables.secrets :
      has(v.projected) ? v.projected.?sources.orValue([]).all(s,
        !has(s.secret) || s.secret.?name.orValue('') in variables.secrets) :
      !has(v.csi) || !has(v.csi.nodePublishSecretRef))
  reason: Forbidden
  message: {{ printf "A pod may mount %s, and no volumes of other kinds that use a Secret." $secrets | quote }}
- expression: >-
    variables.containers.all(c,
      c.?env.orValue([]).all(e,
        e.?valueFrom.?secretKeyRef.?name.orValue('') in [''] + variables.secrets) &&
      c.?envFrom.orValue([]).all(f,
        f.?secretRef.?name.orValue('') in [''] + variables.secrets))
  reason: Forbidden
  message: {{ printf "The environment of a container may come from %s; an admin allows others by the chart's value admission.allowedSecrets." $secrets | quote }}
{{- end }}

{{/*
The PriorityClasses that jobs may use, as JSON. Takes the root context.
*/}}
{{- define "edl.admission.classes" -}}
{{- with .Values -}}
{{- concat (list .priorityClasses.high.name .priorityClasses.low.name) .admission.allowedPriorityClasses | uniq | toJson -}}
{{- end -}}
{{- end }}

{{/*
A policy in force. Takes a dict: root, name.
*/}}
{{- define "edl.admission.binding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  {{- include "edl.metadata" (merge (dict "annotations" (include "edl.clusterKeep" .root | fromYaml)) .) | nindent 2 }}
spec:
  policyName: {{ .name }}
  validationActions: [Deny]
{{- end }}
