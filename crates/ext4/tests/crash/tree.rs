//! The whole state of a file system as its users see it.

use std::collections::BTreeMap;
use std::sync::Arc;

use polylane_base::Ino;
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Attr, FileSystem, Kind};

/// Everything but the bytes of files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    pub attr: Attr,
    pub target: Vec<u8>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// One name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub meta: Meta,
    pub data: Arc<Vec<u8>>,
}

/// A tree by path; the root is `""`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    pub nodes: BTreeMap<String, Node>,
    /// What is open, with names or without. No cut shows it.
    pub held: Vec<Node>,
}

/// More names than any workload makes: a walk that finds more has run into a loop.
const NAMES_MAX: usize = 20_000;

/// Reads everything. Inodes that were looked up are forgotten again, except what `keep` says.
///
/// # Errors
/// What cannot be read.
pub fn snapshot(fs: &dyn FileSystem, keep: &dyn Fn(Ino) -> bool) -> Result<Tree, String> {
    let root = fs.root().map_err(|errno| format!("root: {errno}"))?;
    snapshot_of(fs, root, keep)
}

/// The same below one directory, whose path is `""`.
///
/// # Errors
/// What cannot be read.
pub fn snapshot_of(
    fs: &dyn FileSystem,
    root: Attr,
    keep: &dyn Fn(Ino) -> bool,
) -> Result<Tree, String> {
    let mut tree = Tree::default();
    let mut todo = vec![(String::new(), root)];
    let mut seen = Vec::new();
    while let Some((path, attr)) = todo.pop() {
        if attr.kind == Kind::Dir {
            for name in names(fs, attr.ino).map_err(|errno| format!("list '{path}': {errno}"))? {
                let text = String::from_utf8_lossy(&name);
                let below = if path.is_empty() { text.into() } else { format!("{path}/{text}") };
                let child = fs.lookup(&OpCtx::service(), attr.ino, &name);
                let child = child.map_err(|errno| format!("look up '{below}': {errno}"))?;
                seen.push(child.ino);
                todo.push((below, child));
            }
        }
        let node = node(fs, attr).map_err(|error| format!("read '{path}': {error}"))?;
        tree.nodes.insert(path, node);
        if tree.nodes.len() > NAMES_MAX {
            return Err("endless tree".into());
        }
    }
    seen.sort_unstable_by_key(|ino: &Ino| ino.0);
    seen.dedup();
    seen.retain(|ino| *ino != root.ino && !keep(*ino));
    seen.into_iter().for_each(|ino| fs.forget(ino));
    Ok(tree)
}

fn names(fs: &dyn FileSystem, dir: Ino) -> polylane_base::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    fs.readdir(&OpCtx::service(), dir, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        names.len() < NAMES_MAX
    })?;
    Ok(names)
}

/// Reads one inode.
///
/// # Errors
/// The file system's.
pub fn node(fs: &dyn FileSystem, attr: Attr) -> polylane_base::Result<Node> {
    let mut data = Vec::new();
    if attr.kind == Kind::File {
        data = vec![0; attr.size as usize];
        let count = fs.read(&OpCtx::service(), attr.ino, 0, data.len(), &mut &mut data[..])?;
        data.truncate(count);
    }
    let target = if attr.kind == Kind::Symlink {
        fs.readlink(&OpCtx::service(), attr.ino)?
    } else {
        Vec::new()
    };
    let mut xattrs = BTreeMap::new();
    for name in fs.listxattr(&OpCtx::service(), attr.ino)? {
        let value = fs.getxattr(&OpCtx::service(), attr.ino, &name)?;
        xattrs.insert(name, value);
    }
    Ok(Node { meta: Meta { attr, target, xattrs }, data: Arc::new(data) })
}

/// The fields that differ.
fn fields(left: &Meta, right: &Meta) -> String {
    let (left, right) = (format!("{left:?}"), format!("{right:?}"));
    let pairs = left.split(", ").zip(right.split(", ")).filter(|(one, other)| one != other);
    let pairs: Vec<String> = pairs.map(|(one, other)| format!("{one} / {other}")).collect();
    pairs.join(", ")
}

impl Tree {
    /// All names and states of one inode; one that is held open has the name `*`.
    pub fn of(&self, ino: Ino) -> Vec<(&str, &Node)> {
        let named = self.nodes.iter().map(|(path, node)| (path.as_str(), node));
        let held = self.held.iter().map(|node| ("*", node));
        named.chain(held).filter(|(_, node)| node.meta.attr.ino == ino).collect()
    }

    /// What lies below a directory of the root, with that directory as root.
    pub fn below(&self, dir: &str) -> Tree {
        let inside = |(path, node): (&String, &Node)| {
            let rest = path.strip_prefix(dir)?;
            let rest = if rest.is_empty() { Some(rest) } else { rest.strip_prefix('/') };
            Some((rest?.to_string(), node.clone()))
        };
        Tree { nodes: self.nodes.iter().filter_map(inside).collect(), held: Vec::new() }
    }

    /// The first difference in names or metadata.
    pub fn difference(&self, other: &Tree) -> Option<String> {
        for (path, node) in &self.nodes {
            match other.nodes.get(path) {
                None => return Some(format!("'{path}' is only on the left")),
                Some(same) if same.meta != node.meta => {
                    return Some(format!("'{path}': {}", fields(&node.meta, &same.meta)));
                }
                Some(_) => {}
            }
        }
        let more = other.nodes.keys().find(|path| !self.nodes.contains_key(*path));
        more.map(|path| format!("'{path}' is only on the right"))
    }
}
