{{/*
A schedule as the CronJob controller reads it, field by field: what it cannot read fails here, since the API server would
refuse the CronJob when the release is half installed. Takes the root context.
*/}}
{{- define "edl-job.checkSchedule" -}}
{{- $schedule := .Values.schedule -}}
{{- if not (hasPrefix "@" $schedule) -}}
{{- $months := list "jan" "feb" "mar" "apr" "may" "jun" "jul" "aug" "sep" "oct" "nov" "dec" -}}
{{- $days := list "sun" "mon" "tue" "wed" "thu" "fri" "sat" -}}
{{- $fields := list
      (dict "name" "minute" "least" 0 "most" 59)
      (dict "name" "hour" "least" 0 "most" 23)
      (dict "name" "day of the month" "least" 1 "most" 31)
      (dict "name" "month" "least" 1 "most" 12 "words" $months)
      (dict "name" "day of the week" "least" 0 "most" 6 "words" $days) -}}
{{- range $index, $text := splitList " " $schedule -}}
{{- $field := index $fields $index -}}
{{- range splitList "," $text -}}
{{- if include "edl-job.cronWrong" (dict "field" $field "text" .) -}}
{{- fail (printf "schedule: %q is no %s (%d to %d, a range such as 1-5, a step such as */2, or several of these with commas)" . $field.name $field.least $field.most) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- include "edl-job.checkTimeZone" . -}}
{{- end -}}

{{/*
Whether a part of a field, between its commas, cannot be read: "true", or empty. Takes a dict: field; text, the part.
*/}}
{{- define "edl-job.cronWrong" -}}
{{- $parts := regexFindAll "[^/]*" .text -1 -}}
{{- $range := first $parts | lower -}}
{{- range $index, $word := .field.words -}}
{{- $range = regexReplaceAll (printf "\\b%s\\b" $word) $range (toString (add $index $.field.least)) -}}
{{- end -}}
{{- if not (regexMatch "^[^/]+(/0*[1-9][0-9]{0,3})?$" .text) -}}
{{ true }}
{{- else if not (has $range (list "*" "?")) -}}
{{- if not (regexMatch "^[0-9]{1,2}(-[0-9]{1,2})?$" $range) -}}
{{ true }}
{{- else -}}
{{- $from := regexFind "^[0-9]+" $range | trimPrefix "0" | int -}}
{{- $to := regexFind "[0-9]+$" $range | trimPrefix "0" | int -}}
{{- if or (lt $from (int .field.least)) (gt $to (int .field.most)) (gt $from $to) -}}
{{ true }}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
A time zone that does not exist. It is looked up where Helm runs: sprig takes one that it does not find for UTC, and all
of them where the machine has no time zones, when nothing can be said. Takes the root context.
*/}}
{{- define "edl-job.checkTimeZone" -}}
{{- $zone := .Values.timeZone -}}
{{- $utc := regexMatch "^(Etc/)?(UTC|UCT|Universal|Zulu)$" $zone -}}
{{- $known := ne (dateInZone "MST" now "Europe/Berlin") "UTC" -}}
{{- if or (eq (lower $zone) "local") (and $zone $known (not $utc) (eq (dateInZone "MST" now $zone) "UTC")) -}}
{{- fail (printf "timeZone: there is no time zone %q; they are named such as Europe/Berlin, or Etc/UTC" $zone) -}}
{{- end -}}
{{- end -}}
