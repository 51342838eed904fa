for n in 'a b' 'tab\tx' '*' '~' '-dash' "q'uote" 'ünïcode' '...' '.hidden'; do : >"./$n"; done
ls -A
rm -- -dash
ls -A | wc -l
mkdir -p .d
ls
cd .d
touch ../x
ls ..
cd ../.d/../.d
pwd
touch $(printf 'bad\377')
ls | od -c
test -e '' || echo empty
ls t/a/numbers/ || echo $?
touch new/ || echo $?
mkdir dd/
ls -d dd/
