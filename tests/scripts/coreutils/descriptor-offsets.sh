exec 3<t/a/numbers
head -c 0 <&3
read -r a <&3
read -r b <&3
echo $a $b
busybox head -n 1 <&3
exec 3<&-
exec 4>o
printf abc >&4
busybox printf def >&4
printf ghi >&4
exec 4>&-
cat o
echo
{ read -r l; echo $l; sed -n 1p; } <t/a/b/text
printf '1\n2\n3\n' >i
(read -r x; cat) <i
(read -r x; busybox cat) <i
