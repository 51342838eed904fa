rmdir t/a || echo $?
mkdir -p x/y/z
rmdir x/y/z
rmdir -p x/y
test ! -e x
rmdir no || echo $?
rmdir t/soft || echo $?
mkdir d
(cd d; rmdir ../d; ls -A; pwd; touch f || echo $?)
test ! -e d
