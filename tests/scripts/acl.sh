# Access control lists: set, inherited, copied and packed, and who may do what by them.
lists() {
    (cd "$1" && find . ! -type l | LC_ALL=C sort | getfacl -n -)
}
setfacl -m u:1234:rw,g:4321:r t/a/numbers
setfacl -R -m u:1234:rX t/c
setfacl -d -m u:1234:rwx,g:4321:rx,o::- t/c
touch t/c/heir
mkdir t/c/below
touch t/c/below/heir
lists t
chmod 0640 t/a/numbers
getfacl -n t/a/numbers
ls -l t/a/numbers | cut -c 1-11
cp -a t copy
lists copy > copied
lists t | cmp - copied
cp --preserve=mode t/a/numbers n
getfacl -n n
cp t/a/numbers plain
getfacl -n plain
if command -v rsync > list; then
    rsync -aA t/ synced
    lists synced | cmp - copied
fi
tar --acls -cf packed.tar t
mkdir unpacked
tar --acls -xpf packed.tar -C unpacked
lists unpacked/t | cmp - copied
getfacl -R t > saved
setfacl -R -b t
lists t
setfacl --restore=saved
lists t | cmp - copied
mv t/a/numbers t/c/numbers
getfacl -n t/c/numbers
ln t/c/numbers again
setfacl -x u:1234 again
getfacl -n t/c/numbers
sed -i s/1/2/ t/c/numbers
getfacl -n t/c/numbers
chmod 755 . t t/c
as() {
    who=$1
    shift
    setpriv --reuid="$who" --regid="$who" --clear-groups "$@" || echo "$who: $?"
}
echo text > secret
chmod 600 secret
as 1234 cat secret
setfacl -m u:1234:r secret
as 1234 cat secret
as 1235 cat secret
as 1234 sh -c 'echo more >> secret'
setfacl -m u:1234:rw secret
as 1234 sh -c 'echo more >> secret'
as 1234 tail -n 1 secret
as 1234 touch t/c/mine
setfacl -m u:1234:rwx t/c
as 1234 sh -c 'echo mine > t/c/mine; ls -l t/c/mine | cut -c 1-11'
as 1235 ls t/c
setfacl -m u:1235:- t/c
as 1235 ls t/c
as 1234 setfacl -b secret
setfacl -b secret
as 1234 cat secret
