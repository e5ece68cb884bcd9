#!/bin/sh
# usage: shim.sh FOLDER PROGRAM [ARGUMENT...]
# Runs PROGRAM with its streams in FOLDER, so that it outlives whoever started it, and writes its
# exit status down there. Its stdin is the FIFO `in`, open for writing too: it never sees its end.
folder=$1
shift
unset PWD OLDPWD SHLVL # which some shells set
trap : HUP INT TERM # a signal to the group is meant for PROGRAM; a handler is not inherited
"$@" >>"$folder/out" 2>>"$folder/err"
code=$?
echo "$code" >"$folder/exit.new"
mv "$folder/exit.new" "$folder/exit"
exit "$code"
