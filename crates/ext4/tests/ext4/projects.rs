//! Projects beside a model, with limits: what belongs to which, who may have how much, what totals
//! a directory shows, what gets no name in another project's directory. e2fsck counts in the end.

use std::collections::BTreeMap;

use polylane_base::rng::Rng;
use polylane_base::{Errno, Gid, Ino, Uid};
use polylane_ext4::Ext4;
use polylane_testkit::fs_suite::node;
use polylane_testkit::quota::{Limits, of_projects, set_limits};
use polylane_vfs::flags::PROJECT_INHERIT;
use polylane_vfs::fs::{FileSystem, Kind, NewNode, RenameMode, SetAttr};
use polylane_vfs::{Cred, OpCtx};

use crate::common::{self, root};

const STEPS: usize = 1500;
const BLOCKS_MAX: u64 = 12;
const NODES_MAX: usize = 40;

/// Limits by project, in blocks and inodes; 0: none. Others have none.
const LIMITED: [(u32, u64, u64); 3] = [(77, 12, 8), (78, 6, 0), (4_000_000_000, 0, 4)];
const PROJECTS: [u32; 5] = [0, 77, 78, 79, 4_000_000_000];

/// What the model knows of a node.
#[derive(Clone)]
struct Known {
    ino: Ino,
    dir: usize,
    name: String,
    is_dir: bool,
    project: u32,
    inherits: bool,
    /// Blocks up to its end.
    length: u64,
    /// Blocks that it takes: with one of its tree, where it lies in many pieces.
    blocks: u64,
}

impl Known {
    /// What it takes after its length changed.
    fn measure(&mut self, fs: &Ext4, block: u64) {
        let attr = fs.getattr(&OpCtx::service(), self.ino).expect("there");
        self.blocks = attr.blocks * 512 / block;
        assert!((self.length..=self.length + 1).contains(&self.blocks), "{attr:?}");
    }
}

/// Nodes by a number; 0 is the root.
struct Model {
    nodes: BTreeMap<usize, Known>,
    next: usize,
}

impl Model {
    fn taken(&self, project: u32) -> (u64, u64) {
        let of = self.nodes.values().filter(|node| node.project == project);
        of.fold((0, 0), |sum, node| (sum.0 + node.blocks, sum.1 + 1))
    }

    /// Whether a project may take so many more blocks and inodes.
    fn allows(&self, project: u32, (blocks, inodes): (u64, u64)) -> bool {
        let Some((_, most, most_inodes)) = LIMITED.iter().find(|limit| limit.0 == project) else {
            return true;
        };
        let (has, has_inodes) = self.taken(project);
        let fits = |more, has, most| more == 0 || most == 0 || has + more <= most;
        fits(blocks, has, *most) && fits(inodes, has_inodes, *most_inodes)
    }

    fn pick(&self, rng: &mut Rng, dirs: bool) -> usize {
        let of = self.nodes.iter().filter(|(_, node)| node.is_dir == dirs);
        let all: Vec<usize> = of.map(|(number, _)| *number).collect();
        if all.is_empty() { 0 } else { *rng.pick(&all) }
    }

    /// The project of what is made in a directory.
    fn within(&self, dir: usize) -> u32 {
        let dir = &self.nodes[&dir];
        if dir.inherits { dir.project } else { 0 }
    }

    fn node(&mut self, number: usize) -> &mut Known {
        self.nodes.get_mut(&number).expect("there")
    }

    /// Whether a node may get a name in a directory.
    fn named(&self, node: usize, dir: usize) -> Result<(), Errno> {
        let dir = &self.nodes[&dir];
        let fits = !dir.inherits || dir.project == self.nodes[&node].project;
        if fits { Ok(()) } else { Err(Errno::EXDEV) }
    }

    fn is_above(&self, above: usize, mut below: usize) -> bool {
        while below != 0 && below != above {
            below = self.nodes[&below].dir;
        }
        below == above
    }
}

/// Both, and what acts on them.
struct Scene<'a> {
    fs: &'a Ext4,
    model: Model,
    rng: Rng,
    block: u64,
}

impl Scene<'_> {
    /// One step on both: what the file system said is what the model says.
    fn step(&mut self) {
        let cred = Cred { uid: Uid(1000), gid: Gid(1000), ..Cred::root() };
        let is_root = self.rng.percent(15);
        let ctx = &if is_root { OpCtx::service() } else { OpCtx::as_user(&cred) };
        let file = self.model.pick(&mut self.rng, false);
        let dir = self.model.pick(&mut self.rng, true);
        let any = if self.rng.percent(50) && file != 0 { file } else { dir };
        match self.rng.below(12) {
            0..=3 if self.model.nodes.len() < NODES_MAX => self.make(ctx, dir),
            4 | 5 if file != 0 => self.grow(ctx, file),
            6 if file != 0 => self.cut(ctx, file),
            7 if any != 0 => self.give(ctx, any),
            8 if dir != 0 => self.pass_on(ctx, dir),
            9 if file != 0 => self.link(ctx, file, dir),
            10 if any != 0 && !self.model.is_above(any, dir) => self.rename(ctx, any, dir),
            11 if any != 0 => self.remove(ctx, any),
            _ => {}
        }
        check(self.fs, &self.model, dir);
        if let Some(known) = self.model.nodes.get(&file) {
            assert_eq!(self.fs.project(known.ino), Ok(Some(known.project)), "{}", known.name);
        }
    }

    fn make(&mut self, ctx: &OpCtx<'_>, dir: usize) {
        let (fs, model) = (self.fs, &mut self.model);
        let kind = *self.rng.pick(&[Kind::File, Kind::File, Kind::File, Kind::Dir, Kind::Fifo]);
        let is_dir = kind == Kind::Dir;
        let (number, project) = (model.next, model.within(dir));
        let name = format!("n{number}");
        let new = NewNode { uid: Uid(1000), gid: Gid(1000), ..node(kind, 0o755) };
        let made = fs.create(ctx, model.nodes[&dir].ino, name.as_bytes(), &new);
        let fits = model.allows(project, (is_dir.into(), 1));
        assert_eq!(made.as_ref().map(|_| ()).map_err(|why| *why), expected(ctx, fits), "{name}");
        let Ok(made) = made else { return };
        model.next += 1;
        let (ino, inherits) = (made.node.ino, is_dir && model.nodes[&dir].inherits);
        let blocks = is_dir.into();
        let known = Known { ino, dir, name, is_dir, project, inherits, length: 0, blocks };
        if kind == Kind::Fifo {
            fs.unlink(ctx, model.nodes[&dir].ino, known.name.as_bytes()).expect("there");
            fs.forget(ino);
        } else {
            model.nodes.insert(number, known);
        }
    }

    fn grow(&mut self, ctx: &OpCtx<'_>, file: usize) {
        let (fs, block) = (self.fs, self.block);
        let known = self.model.nodes[&file].clone();
        if known.length == BLOCKS_MAX {
            return;
        }
        let fits = self.model.allows(known.project, (1, 0));
        let at = known.length * block;
        let promised = fs.reserve(ctx, known.ino, at, block);
        assert_eq!(promised, expected(ctx, fits), "a block more of {}", known.name);
        if promised.is_ok() {
            let bytes = vec![7; block as usize];
            fs.write(ctx, known.ino, at, &mut &bytes[..]).expect("promised");
            let known = self.model.node(file);
            known.length += 1;
            known.measure(fs, block);
        }
    }

    fn cut(&mut self, ctx: &OpCtx<'_>, file: usize) {
        let known = self.model.node(file);
        known.length = self.rng.below(known.length + 1);
        let set = SetAttr { size: Some(known.length * self.block), ..SetAttr::default() };
        self.fs.setattr(ctx, known.ino, &set).expect("cut");
        known.measure(self.fs, self.block);
    }

    fn give(&mut self, ctx: &OpCtx<'_>, any: usize) {
        let (project, known) = (*self.rng.pick(&PROJECTS), self.model.nodes[&any].clone());
        let set = SetAttr { project: Some(project), ..SetAttr::default() };
        let given = self.fs.setattr(ctx, known.ino, &set).map(|_| ());
        let fits = known.project == project || self.model.allows(project, (known.blocks, 1));
        assert_eq!(given, expected(ctx, fits), "{} to {project}", known.name);
        if given.is_ok() {
            self.model.node(any).project = project;
        }
    }

    fn pass_on(&mut self, ctx: &OpCtx<'_>, dir: usize) {
        let known = self.model.node(dir);
        known.inherits = !known.inherits;
        let flags = if known.inherits { PROJECT_INHERIT } else { 0 };
        let set = SetAttr { flags: Some(flags), ..SetAttr::default() };
        let now = self.fs.setattr(ctx, known.ino, &set).expect("set").flags;
        assert_eq!(now & PROJECT_INHERIT, flags);
    }

    /// A second name comes and goes.
    fn link(&mut self, ctx: &OpCtx<'_>, file: usize, dir: usize) {
        let (file_ino, dir_ino) = (self.model.nodes[&file].ino, self.model.nodes[&dir].ino);
        let linked = self.fs.link(ctx, file_ino, dir_ino, b"link").map(|_| ());
        assert_eq!(linked, self.model.named(file, dir));
        if linked.is_ok() {
            self.fs.unlink(ctx, dir_ino, b"link").expect("there");
        }
    }

    fn rename(&mut self, ctx: &OpCtx<'_>, any: usize, dir: usize) {
        let (known, name) = (self.model.nodes[&any].clone(), format!("n{}", self.model.next));
        let (from, to) = (self.model.nodes[&known.dir].ino, self.model.nodes[&dir].ino);
        let mode = *self.rng.pick(&[RenameMode::Replace, RenameMode::NoReplace]);
        let moved = self.fs.rename(ctx, from, known.name.as_bytes(), to, name.as_bytes(), mode);
        let moved = moved.map(|_| ());
        assert_eq!(moved, self.model.named(any, dir));
        if moved.is_ok() {
            self.model.next += 1;
            let known = self.model.node(any);
            (known.name, known.dir) = (name, dir);
        }
    }

    fn remove(&mut self, ctx: &OpCtx<'_>, any: usize) {
        if self.model.nodes.values().any(|node| node.dir == any) {
            return;
        }
        let known = self.model.nodes.remove(&any).expect("there");
        let (at, name) = (self.model.nodes[&known.dir].ino, known.name.as_bytes());
        match known.is_dir {
            true => drop(self.fs.rmdir(ctx, at, name).expect("empty")),
            false => drop(self.fs.unlink(ctx, at, name).expect("there")),
        }
        self.fs.forget(known.ino);
    }
}

/// What a limit lets root do, and others.
fn expected(ctx: &OpCtx<'_>, fits: bool) -> Result<(), Errno> {
    if fits || ctx.is_root() { Ok(()) } else { Err(Errno::EDQUOT) }
}

/// The totals that a directory shows, and whose it is.
fn check(fs: &Ext4, model: &Model, dir: usize) {
    let Some(known) = model.nodes.get(&dir) else { return };
    assert_eq!(fs.project(known.ino), Ok(Some(known.project)));
    let all = fs.statfs(&OpCtx::service()).expect("told");
    let told = fs.statfs_within(known.ino, all).expect("told");
    let limit = LIMITED.iter().find(|limit| limit.0 == known.project);
    let (_, most, most_inodes) = limit.copied().unwrap_or_default();
    let (has, has_inodes) = model.taken(known.project);
    let (mut blocks, mut inodes) = ((all.blocks, all.bfree), (all.files, all.ffree));
    if most > 0 {
        blocks = (most, most.saturating_sub(has));
    }
    if most_inodes > 0 {
        inodes = (most_inodes, most_inodes.saturating_sub(has_inodes));
    }
    assert_eq!(
        (told.blocks, told.bfree, told.bavail.min(blocks.1)),
        (blocks.0, blocks.1, told.bavail)
    );
    assert_eq!((told.files, told.ffree), inodes);
}

#[test]
fn projects_are_as_in_a_model_and_their_limits_hold() {
    if !common::have_tools() {
        return;
    }
    let formats: [&[&str]; 3] = [
        &["-t", "ext4", "-b", "4096", "-O", "quota,project"],
        &["-t", "ext4", "-b", "1024", "-O", "quota,project"],
        &["-t", "ext4", "-b", "4096", "-O", "quota,project,fast_commit,ea_inode"],
    ];
    for (seed, format) in formats.into_iter().enumerate() {
        let device = common::make(64, format);
        let fs = common::open(&device);
        let block = u64::from(fs.statfs(&OpCtx::service()).expect("told").bsize);
        // An entry for each.
        for project in PROJECTS {
            let set = SetAttr { project: Some(project), ..SetAttr::default() };
            fs.setattr(&OpCtx::service(), root(&fs), &set).expect("given");
        }
        let set = SetAttr { project: Some(0), ..SetAttr::default() };
        fs.setattr(&OpCtx::service(), root(&fs), &set).expect("given back");
        fs.close().expect("closes");
        let image = common::save(&device);
        let mut tune = std::process::Command::new("tune2fs");
        tune.args(["-E", "mount_opts=prjquota"]).arg(image.path());
        assert!(tune.output().expect("tune2fs runs").status.success());
        let quota = of_projects(image.path());
        for (project, blocks, hard_inodes) in LIMITED {
            let hard_kib = blocks * block / 1024;
            let limits = Limits { hard_kib, hard_inodes, ..Limits::default() };
            set_limits(image.path(), (quota, project), limits);
        }
        let device = common::load(&std::fs::read(image.path()).expect("readable"));
        let fs = common::open(&device);
        assert_eq!(fs.read_only_reasons, Vec::<String>::new(), "{format:?}");
        let known = Known {
            ino: root(&fs),
            dir: 0,
            name: String::new(),
            is_dir: true,
            project: 0,
            inherits: false,
            length: 0,
            blocks: 1,
        };
        let model = Model { nodes: BTreeMap::from([(0, known)]), next: 1 };
        let mut scene = Scene { fs: &fs, model, rng: Rng::new(seed as u64), block };
        (0..STEPS).for_each(|_| scene.step());
        assert_eq!(fs.stopped_by(), None, "{format:?}");
        fs.close().expect("closes");
        assert_eq!(common::complaints(&device), None, "{format:?}");
    }
}

/// Without `project` an image has no projects, whatever is in its inodes; the flag can be set.
#[test]
fn without_the_feature_there_are_no_projects() {
    common::on(16, common::LANE, |fs| {
        let dir = common::create(fs, root(fs), "dir", Kind::Dir);
        assert_eq!(fs.project(dir), Ok(None));
        let set = SetAttr { project: Some(5), ..SetAttr::default() };
        assert_eq!(fs.setattr(&OpCtx::service(), dir, &set).err(), Some(Errno::EOPNOTSUPP));
        let set = SetAttr { flags: Some(PROJECT_INHERIT), ..SetAttr::default() };
        fs.setattr(&OpCtx::service(), dir, &set).expect("set");
        let file = common::create(fs, root(fs), "file", Kind::File);
        fs.link(&OpCtx::service(), file, dir, b"linked").expect("of no project, like all");
        let all = fs.statfs(&OpCtx::service()).expect("told");
        assert_eq!(fs.statfs_within(dir, all), Ok(all));
    });
}
