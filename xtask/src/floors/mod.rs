//! The floors inside of crates: what imports what, circles among modules, the table in
//! ARCHITECTURE.md.
//!
//! A module and what lies below it in its folder count as one towards its neighbours; a module may
//! use its own children and be used by them. Modules that use each other, by whatever way round,
//! are a *circle*: none of them can be read, tested or changed without the others. A crate without
//! circles has floors: each module stands one above the highest that it uses.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail};

mod imports;

use imports::{Imports, Module};

/// The circles that are known, as [`print()`] prints them. The check fails when one grows or
/// another appears, and when one has shrunk: then the list is to shrink, too.
const KNOWN: &str = "xtask/circles.txt";

/// What names what among the children of one module.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// Modules of one parent that use each other.
#[derive(Debug, PartialEq)]
struct Circle {
    place: String,
    modules: Vec<String>,
}

impl Circle {
    fn line(&self) -> String {
        format!("{}: {}", self.place, self.modules.join(" "))
    }
}

/// A crate's modules, looked at.
struct House {
    name: String,
    files: usize,
    circles: Vec<Circle>,
    /// Modules right below the crate's root, from the top floor down.
    floors: Vec<Vec<String>>,
}

/// Finds circles, and compares the table in ARCHITECTURE.md.
///
/// # Errors
///
/// Circles that are not known, lines about circles that are gone, a table that is out of date; what
/// cannot be read.
pub fn check(root: &Path) -> Result<()> {
    let houses = read(root)?;
    let known = read_text(&root.join(KNOWN))?;
    let mut wrong = unexpected(&lines(&houses), known.lines());
    let text = read_text(&root.join("ARCHITECTURE.md"))?;
    if !text.contains(&table(&houses)) {
        wrong.push(
            "the table of floors in ARCHITECTURE.md is out of date: `cargo xtask rooms` prints it"
                .into(),
        );
    }
    for line in &wrong {
        eprintln!("floors: {line}");
    }
    match wrong.len() {
        0 => Ok(()),
        count => bail!("{count} thing(s) wrong with the floors inside of crates"),
    }
}

/// Prints the table and every circle; with the name of a crate what holds its circles together:
/// each file in one with the modules beside it that it names.
///
/// # Errors
///
/// What cannot be read.
pub fn print(root: &Path, name: Option<&str>) -> Result<()> {
    let houses = read(root)?;
    let Some(name) = name else {
        print!("{}\n{}\n", table(&houses), lines(&houses).join("\n"));
        return Ok(());
    };
    let imports = Imports::read(&root.join("crates").join(name).join("src"))?;
    for circle in houses.iter().filter(|house| house.name == name).flat_map(|house| &house.circles)
    {
        println!("{}", circle.line());
        ties(&imports, circle).iter().for_each(|tie| println!("    {tie}"));
    }
    Ok(())
}

/// What each file of a circle names of the modules beside it.
fn ties(imports: &Imports, circle: &Circle) -> Vec<String> {
    let place: Module = circle.place.split("::").skip(1).map(String::from).collect();
    let within = |module: &Module| {
        let child = module.strip_prefix(place.as_slice())?.first()?;
        circle.modules.iter().find(|one| *one == child)
    };
    let mut ties = Vec::new();
    for (module, named) in imports.iter() {
        let Some(own) = within(module) else { continue };
        let others = named.iter().filter(|other| within(other).is_some_and(|child| child != own));
        let others: Vec<String> = others.map(|other| other.join("::")).collect();
        if !others.is_empty() {
            ties.push(format!("{} -> {}", module.join("::"), others.join(", ")));
        }
    }
    ties
}

fn read_text(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

fn read(root: &Path) -> Result<Vec<House>> {
    let mut houses = Vec::new();
    let crates = root.join("crates");
    let entries =
        std::fs::read_dir(&crates).with_context(|| format!("read {}", crates.display()))?;
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let imports = Imports::read(&entry.path().join("src"))?;
        houses.push(house(name, &imports));
    }
    houses.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(houses)
}

fn house(name: String, imports: &Imports) -> House {
    let parents: BTreeSet<&[String]> =
        imports.iter().filter_map(|(module, _)| Some(module.split_last()?.1)).collect();
    let mut circles = Vec::new();
    for parent in parents {
        let graph = children(imports, parent);
        let place = [std::slice::from_ref(&name), parent].concat().join("::");
        let found = groups(&graph).into_iter().filter(|group| group.len() > 1);
        circles.extend(found.map(|modules| Circle { place: place.clone(), modules }));
    }
    House { files: imports.iter().count(), floors: floors(&children(imports, &[])), name, circles }
}

/// The children of `parent`, each with the others whose files those in its folder name.
fn children(imports: &Imports, parent: &[String]) -> Graph {
    let below =
        |module: &Module| module.strip_prefix(parent).and_then(|rest| rest.first()).cloned();
    let mut graph = Graph::new();
    for (module, named) in imports.iter() {
        let Some(child) = below(module) else { continue };
        let others = named.iter().filter_map(below).filter(|other| *other != child);
        graph.entry(child.clone()).or_default().extend(others);
    }
    graph
}

/// What can be come to from `start`.
fn reach<'a>(graph: &'a Graph, start: &'a str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut ahead = vec![start];
    while let Some(node) = ahead.pop() {
        let next = graph.get(node).into_iter().flatten().map(String::as_str);
        ahead.extend(next.filter(|next| found.insert(*next)));
    }
    found
}

/// The modules in groups of those that use each other; most stand alone.
fn groups(graph: &Graph) -> Vec<Vec<String>> {
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        graph.keys().map(|node| (node.as_str(), reach(graph, node))).collect();
    let mut groups: Vec<Vec<String>> = Vec::new();
    for (node, reached) in &reach {
        let mutual = |other: &&String| {
            reached.contains(other.as_str()) && reach[other.as_str()].contains(node)
        };
        if !groups.iter().flatten().any(|seen| seen == node) {
            let others = graph.keys().filter(|other| other != node).filter(mutual).cloned();
            groups.push(std::iter::once((*node).to_string()).chain(others).collect());
        }
    }
    groups
}

/// The modules from the top floor down. A circle is on one floor.
fn floors(graph: &Graph) -> Vec<Vec<String>> {
    let mut left = groups(graph);
    let mut floors = Vec::new();
    let mut laid: BTreeSet<String> = BTreeSet::new();
    while !left.is_empty() {
        let rests = |group: &Vec<String>| {
            let uses = group.iter().flat_map(|node| &graph[node]);
            uses.into_iter().all(|used| laid.contains(used) || group.contains(used))
        };
        let (floor, above): (Vec<_>, Vec<_>) = left.into_iter().partition(rests);
        let floor: Vec<String> = floor.concat();
        laid.extend(floor.iter().cloned());
        floors.push(floor);
        left = above;
    }
    floors.reverse();
    floors
}

/// One line for each circle, as the list of known ones has them.
fn lines(houses: &[House]) -> Vec<String> {
    houses.iter().flat_map(|house| &house.circles).map(Circle::line).collect()
}

/// What of the circles is not as the list says.
fn unexpected<'a>(found: &[String], known: impl Iterator<Item = &'a str>) -> Vec<String> {
    let known: Vec<&str> =
        known.filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let new = found.iter().filter(|line| !known.contains(&line.as_str()));
    let gone = known.iter().filter(|line| !found.iter().any(|one| one == *line));
    let new = new.map(|line| format!("a circle that {KNOWN} does not know: {line}"));
    let gone = gone.map(|line| format!("not there any more, take it from {KNOWN}: {line}"));
    new.chain(gone).collect()
}

/// The table of floors, as ARCHITECTURE.md has it.
fn table(houses: &[House]) -> String {
    let mut text = String::from(
        "| crate | files | circles | modules, from the top floor down |\n|---|---|---|---|\n",
    );
    for house in houses {
        let floors: Vec<String> = house.floors.iter().map(|floor| floor.join(" ")).collect();
        let inside = house.circles.iter().map(|circle| circle.modules.len().to_string());
        let circles = inside.collect::<Vec<_>>().join(", ");
        let circles = if circles.is_empty() { "0".into() } else { format!("of {circles}") };
        let _ = writeln!(
            text,
            "| `{}` | {} | {circles} | {} |",
            house.name,
            house.files,
            floors.join(" › ")
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(edges: &[(&str, &[&str])]) -> Graph {
        let own = |used: &&[&str]| used.iter().map(ToString::to_string).collect();
        edges.iter().map(|(node, used)| (node.to_string(), own(used))).collect()
    }

    fn source(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("temporary folder");
        for (name, text) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().expect("below the folder")).expect("made");
            std::fs::write(path, text).expect("written");
        }
        dir
    }

    fn looked_at(files: &[(&str, &str)]) -> House {
        let dir = source(files);
        house("it".into(), &Imports::read(dir.path()).expect("Rust"))
    }

    #[test]
    fn modules_stand_above_what_they_use() {
        let three = graph(&[("a", &["b", "c"]), ("b", &["c"]), ("c", &[]), ("d", &[])]);
        assert_eq!(floors(&three), [vec!["a"], vec!["b"], vec!["c", "d"]]);
        assert!(groups(&three).iter().all(|group| group.len() == 1));
    }

    #[test]
    fn modules_that_use_each_other_by_a_way_round_are_one_circle() {
        let ring = graph(&[("a", &["b"]), ("b", &["c"]), ("c", &["a"]), ("d", &["a"])]);
        assert_eq!(groups(&ring), [vec!["a", "b", "c"], vec!["d"]]);
        assert_eq!(floors(&ring), [vec!["d"], vec!["a", "b", "c"]]);
    }

    #[test]
    fn a_circle_is_found_whatever_form_the_names_have() {
        let ways = [
            "use crate::b;",
            "use crate::{b::B as C};",
            "fn f() { crate::b::g() }",
            "fn f() { println!(\"{}\", crate::b::g()) }",
            "use super::b::*;",
            "mod inner { use super::super::b; }",
        ];
        for way in ways {
            let house = looked_at(&[
                ("lib.rs", "mod a; mod b;"),
                ("a.rs", way),
                ("b/mod.rs", "mod c; pub fn g() {}"),
                ("b/c.rs", "use crate::a::X;"),
            ]);
            assert_eq!(
                house.circles,
                [Circle { place: "it".into(), modules: vec!["a".into(), "b".into()] }],
                "{way}"
            );
        }
    }

    #[test]
    fn a_name_is_followed_to_where_it_stands() {
        let house = looked_at(&[
            ("lib.rs", "mod a; mod b; pub use b::B;"),
            ("a.rs", "use crate::B; pub struct A;"),
            ("b.rs", "use crate::a::A; pub struct B;"),
        ]);
        assert_eq!(house.circles.len(), 1);
    }

    #[test]
    fn tests_children_and_comments_make_no_circle() {
        let house = looked_at(&[
            ("lib.rs", "mod a; mod b;"),
            (
                "a.rs",
                "// use crate::b;\n#[cfg(test)] mod t { use crate::b; }\n\
                 #[test] fn f() { crate::b::g() }",
            ),
            ("b/mod.rs", "mod c; use c::C; use crate::a;"),
            ("b/c.rs", "use super::D;"),
        ]);
        assert_eq!(house.circles, []);
        assert_eq!(house.floors, [["b"], ["a"]]);
    }

    #[test]
    fn the_list_of_known_circles_is_neither_short_nor_long() {
        let found = ["it: a b".to_string()];
        assert!(unexpected(&found, ["# words", "", "it: a b"].into_iter()).is_empty());
        assert_eq!(unexpected(&found, ["it: a"].into_iter()).len(), 2);
    }
}
