mkdir m
cd m
seq -f 'file%05.0f' 1 3000 | xargs touch
ls | wc -l
ls | md5sum
rm file*[02468]
ls | wc -l
ls -U | sort | md5sum
cd ..
rm -r m
ls m || echo $?
