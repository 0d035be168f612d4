{{/*
Name of the PersistentVolume of a team's claim: of the whole cluster, so it carries the namespace. Takes a team.
*/}}
{{- define "edl.volumeName" -}}
{{- printf "edl-%s-%s" .namespace .volume.claim -}}
{{- end }}

{{/*
What a PersistentVolume stands for, when a volume names a server: a part of its spec; empty otherwise. Takes a volume.
*/}}
{{- define "edl.volumeSource" -}}
{{- if (.nfs | default dict).server -}}
{{- with .nfs.mountOptions -}}
mountOptions:
  {{- toYaml . | nindent 2 }}
{{ end -}}
nfs:
  server: {{ .nfs.server | quote }}
  path: {{ .nfs.path | quote }}
{{- else if (.filestore | default dict).volumeHandle -}}
csi:
  driver: filestore.csi.storage.gke.io
  volumeHandle: {{ .filestore.volumeHandle | quote }}
  volumeAttributes:
    ip: {{ .filestore.ip | quote }}
    volume: {{ .filestore.share | quote }}
{{- end -}}
{{- end }}

{{/*
Where the files are on the network, as HOST:/DIRECTORY, when a volume names a server; empty otherwise. A Filestore instance
is an NFS server, so both are written alike. Takes a volume.
*/}}
{{- define "edl.volumeAddress" -}}
{{- if (.nfs | default dict).server -}}
{{ lower .nfs.server }}:{{ clean (printf "/%s" .nfs.path) }}
{{- else if (.filestore | default dict).volumeHandle -}}
{{ .filestore.ip }}:{{ clean (printf "/%s" .filestore.share) }}
{{- end -}}
{{- end }}

{{/*
Where the files of a PersistentVolume are, in one word: what cannot change. Takes the volume's spec.
*/}}
{{- define "edl.volumePlace" -}}
{{- with .nfs -}}
nfs {{ .server }}:{{ .path }}
{{- end -}}
{{- with .csi -}}
{{ .volumeHandle }} at {{ (.volumeAttributes | default dict).ip }}:/{{ (.volumeAttributes | default dict).volume }}
{{- end -}}
{{- end }}
