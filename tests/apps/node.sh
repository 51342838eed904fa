# node: npm installs real packages with their dependencies; they are loaded and work.
export HOME=$PWD npm_config_cache=$PWD/cache npm_config_update_notifier=false
mkdir project && cd project
npm init -y >/dev/null
npm install --no-audit --no-fund --loglevel=error express lodash typescript >../npm.log 2>&1 || { tail -3 ../npm.log; exit 1; }
$OTHER node -e 'const _ = require("lodash"); require("express")(); console.log(_.chunk([1, 2, 3, 4], 2).length)' |
    grep -qx 2
echo 'const n: number = 40 + 2; console.log(n)' >a.ts
node_modules/.bin/tsc a.ts
$OTHER node a.js | grep -qx 42
npm ls --all >/dev/null
echo "$(find node_modules -type f | wc -l) files"
