#!/bin/sh
# Stands in for NATS' config reloader, whose source is no Go module: signals the server when one of the files has changed.
for argument; do
	case $argument in
	-pid=*) pid=${argument#*=} ;;
	-config=*) files="$files ${argument#*=}" ;;
	esac
done
look() { cat $files 2>/dev/null | busybox md5sum; }
trap exit TERM
before=$(look)
while sleep 1; do
	now=$(look)
	[ "$now" = "$before" ] || { echo "reloading"; kill -HUP "$(cat "$pid")"; before=$now; }
done
