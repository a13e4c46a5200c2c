#!/bin/sh
# Under the name of a program that macOS has from BSD: refuses what only GNU's has.
name=${0##*/}
refuse() {
    echo "$name: illegal option -- $1 (this is not GNU's)" >&2
    exit 64
}
for word in "$@"; do
    case $name:$word in
        sed:--*) refuse "$word" ;;
        sed:-i | sed:-ni | sed:-z | sed:-s | sed:-Ei) refuse "$word" ;;
        grep:-P | grep:-oP | grep:-[a-zA-Z]*P*) refuse "$word" ;;
        date:-d* | date:--*) refuse "$word" ;;
        stat:-c* | stat:--*) refuse "$word" ;;
        xargs:-d* | xargs:-a* | xargs:--*) refuse "$word" ;;
        find:-printf | find:-regextype) refuse "$word" ;;
    esac
done
for folder in /usr/bin /bin; do
    [ -x "$folder/$name" ] && exec "$folder/$name" "$@"
done
