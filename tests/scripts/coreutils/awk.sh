awk '{s+=$1} END {print s}' t/a/numbers
awk 'NR%500==0 {print > ("out" NR)}' t/a/numbers
head out*
awk '{print $1 >> "app"}' t/a/b/text
cat app
awk 1 no || echo $?
awk 'BEGIN {while ((getline l < "t/a/b/text") > 0) print "<" l ">"}'
