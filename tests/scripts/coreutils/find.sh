find t | sort
find t -type l | sort
find t -size +50k | sort
find t -empty | sort
find t -perm 640 | sort
find t -links 2 -type f | sort
find t -name '*e*' -newer t/c/big | sort
find t -type f -exec wc -c {} + | sort
find t -maxdepth 1 -mindepth 1 | sort
find t -type d -printf '%p %m\n' | sort
find -L t -type f | sort
find no || echo $?
find t -delete
ls -A
mkdir -p d/$(seq -s / 1 40)
find d | wc -l
find d -depth -type d -exec rmdir {} +
test ! -e d
