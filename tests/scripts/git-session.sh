# A session with git: commit, branch, merge, pack, clone, check.
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org GIT_COMMITTER_NAME=a
export GIT_COMMITTER_EMAIL=a@example.org GIT_AUTHOR_DATE='2001-02-03T04:05:06Z'
export GIT_COMMITTER_DATE="$GIT_AUTHOR_DATE"
git init -q -b main repo
cd repo
mkdir -p src/deep
for i in $(seq 1 200); do seq "$i" $((i + 50)) >"src/file$i"; done
seq 1 5000 >src/deep/numbers
ln -s deep/numbers src/link
chmod +x src/file1
git add .
git commit -q -m first
git checkout -q -b side
for i in $(seq 1 2 200); do echo "side $i" >>"src/file$i"; done
git mv src/deep/numbers src/deep/moved
git commit -q -a -m side
git checkout -q main
git rm -q src/file200
echo more >>src/file2
git commit -q -a -m main
git merge -q -m merged side
git status --porcelain
git log --format='%H %s'
git stash list
echo dirty >>src/file3
git stash -q
git stash pop -q
git diff --stat
git checkout -q -- .
git gc -q --prune=now
git fsck --full --strict --no-progress
git count-objects -v | grep -E 'count|packs|garbage'
git clone -q . ../clone
git clone -q --bare --no-local . ../bare.git
git -C ../bare.git fsck 2>&1
cd ../clone
echo pushed >src/pushed
git add .
git commit -q -m pushed
git push -q ../bare.git main
git -C ../bare.git log -1 --format=%s main
git grep -c side | wc -l
git archive HEAD | tar t | wc -l
git worktree add -q ../tree side
ls ../tree/src/deep
git -C ../tree status --porcelain
rm -rf ../repo
git log --format=%H | md5sum
