//! Which file of a crate names what of which other, read from the source by `syn`.
//!
//! A path is followed to the file that its name stands in: `use crate::table::Pin` leads to
//! `table/pin.rs` where `table/mod.rs` only passes the name on. What is compiled for tests alone
//! is no part of the house.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

/// Where a module stands in its crate: the names that lead to it, none for the crate's root.
pub type Module = Vec<String>;

/// What is known of one module that has a file of its own.
#[derive(Default)]
struct Source {
    /// The names that its `use` items bind, and where each leads.
    bound: BTreeMap<String, Module>,
    /// Every path that it names, from the crate's root.
    named: BTreeSet<Module>,
}

/// The modules of one crate, each with the modules whose content it names.
pub struct Imports(BTreeMap<Module, BTreeSet<Module>>);

impl Imports {
    /// Reads the crate whose sources lie in `src`.
    ///
    /// # Errors
    ///
    /// A file that cannot be read or is no Rust, a `mod` whose file is not there.
    pub fn read(src: &Path) -> Result<Self> {
        let root =
            ["lib.rs", "main.rs"].map(|name| src.join(name)).into_iter().find(|p| p.is_file());
        let root = root.with_context(|| format!("no lib.rs or main.rs in {}", src.display()))?;
        let mut sources = BTreeMap::new();
        read_module(&root, src, &Module::new(), &mut sources)?;
        let found = sources.iter().map(|(module, source)| {
            let named = source.named.iter().map(|path| resolve(&sources, path, DEPTH));
            (module.clone(), named.filter(|target| target != module).collect())
        });
        Ok(Self(found.collect()))
    }

    /// Every module that has a file, and the others that it names.
    pub fn iter(&self) -> impl Iterator<Item = (&Module, &BTreeSet<Module>)> {
        self.0.iter()
    }
}

/// How many `use` items pass a name on before a path is taken to lead nowhere.
const DEPTH: usize = 8;

/// Reads a file and those of the modules that it declares, which lie in `dir`.
fn read_module(
    file: &Path,
    dir: &Path,
    module: &Module,
    sources: &mut BTreeMap<Module, Source>,
) -> Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    let parsed = syn::parse_file(&text).with_context(|| format!("parse {}", file.display()))?;
    let mut reader = Reader { at: module.clone(), source: Source::default(), declared: Vec::new() };
    reader.visit_file(&parsed);
    sources.insert(module.clone(), reader.source);
    for (name, given) in reader.declared {
        let child = [module.as_slice(), std::slice::from_ref(&name)].concat();
        let inner = dir.join(&name);
        let beside = [dir.join(format!("{name}.rs")), inner.join("mod.rs")];
        let places: Vec<PathBuf> = match given {
            Some(path) => vec![file.parent().unwrap_or(dir).join(path)],
            None => beside.into(),
        };
        let Some(place) = places.iter().find(|place| place.is_file()) else {
            bail!("{}: no file for 'mod {name}'", file.display());
        };
        read_module(place, &inner, &child, sources)?;
    }
    Ok(())
}

/// The module that a path leads to.
fn resolve(sources: &BTreeMap<Module, Source>, path: &[String], depth: usize) -> Module {
    let known = (0..=path.len()).rev().find(|end| sources.contains_key(&path[..*end]));
    let (module, rest) = path.split_at(known.unwrap_or(0));
    let Some((name, after)) = rest.split_first() else { return module.to_vec() };
    match sources.get(module).and_then(|source| source.bound.get(name)) {
        Some(target) if depth > 0 && target != path => {
            resolve(sources, &[target, after].concat(), depth - 1)
        }
        _ => module.to_vec(),
    }
}

/// Collects from one file.
struct Reader {
    /// The module that is read: inline ones lengthen it.
    at: Module,
    source: Source,
    /// Modules in files of their own, with the path that an attribute gives.
    declared: Vec<(String, Option<String>)>,
}

impl Reader {
    /// Where a path leads, when it begins in this crate.
    fn absolute(&self, path: &[String]) -> Option<Module> {
        let mut module = match path.first()?.as_str() {
            "crate" | "$crate" => Module::new(),
            "self" | "super" => self.at.clone(),
            _ => return None,
        };
        let mut rest = path;
        while let Some((first, after)) = rest.split_first() {
            match first.as_str() {
                "crate" | "$crate" | "self" => {}
                "super" => drop(module.pop()),
                _ => break,
            }
            rest = after;
        }
        module.extend(rest.iter().cloned());
        Some(module)
    }

    /// Notes a path from the crate's root.
    fn name(&mut self, path: &[String]) {
        self.source.named.extend(self.absolute(path));
    }

    fn use_tree(&mut self, before: &[String], tree: &syn::UseTree) {
        let with = |ident: &syn::Ident| [before, &[ident.to_string()]].concat();
        let (bound, path) = match tree {
            syn::UseTree::Path(path) => return self.use_tree(&with(&path.ident), &path.tree),
            syn::UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.use_tree(before, tree));
            }
            syn::UseTree::Glob(_) => return self.name(before),
            syn::UseTree::Name(name) if name.ident == "self" => (before.last(), before.to_vec()),
            syn::UseTree::Name(name) => (None, with(&name.ident)),
            syn::UseTree::Rename(name) => (None, with(&name.ident)),
        };
        let bound = match tree {
            syn::UseTree::Rename(name) => Some(name.rename.to_string()),
            _ => bound.or(path.last()).cloned(),
        };
        self.name(&path);
        // A child module may be named without `self`.
        let target = self.absolute(&path).unwrap_or_else(|| [&self.at[..], &path].concat());
        self.source.bound.extend(bound.map(|bound| (bound, target)));
    }

    /// Paths in the arguments of a macro, which are no syntax that is known.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Group(group) => self.tokens(group.stream()),
                TokenTree::Punct(punct) if punct.as_char() == ':' => {
                    colons += 1;
                    continue;
                }
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.name(&std::mem::take(&mut path));
                    }
                    path.push(ident.to_string());
                    colons = 0;
                    continue;
                }
                _ => {}
            }
            self.name(&std::mem::take(&mut path));
            colons = 0;
        }
        self.name(&path);
    }
}

impl Visit<'_> for Reader {
    fn visit_item(&mut self, item: &syn::Item) {
        if !attributes(item).iter().any(is_for_tests) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &syn::ItemMod) {
        let name = item.ident.to_string();
        if item.content.is_none() {
            let given = item.attrs.iter().find_map(|attribute| match &attribute.meta {
                syn::Meta::NameValue(pair) if pair.path.is_ident("path") => text(&pair.value),
                _ => None,
            });
            return self.declared.push((name, given));
        }
        self.at.push(name);
        visit::visit_item_mod(self, item);
        self.at.pop();
    }

    fn visit_item_use(&mut self, item: &syn::ItemUse) {
        self.use_tree(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|part| part.ident.to_string()).collect();
        self.name(&names);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &syn::Macro) {
        self.tokens(call.tokens.clone());
    }
}

fn text(value: &syn::Expr) -> Option<String> {
    match value {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.value()),
        _ => None,
    }
}

/// Whether an attribute keeps its item for tests: `#[test]`, `#[cfg(test)]` and the like.
fn is_for_tests(attribute: &syn::Attribute) -> bool {
    let syn::Meta::List(list) = &attribute.meta else { return attribute.path().is_ident("test") };
    let words = list.tokens.to_string();
    let negated = words.contains("not");
    list.path.is_ident("cfg")
        && !negated
        && words.split(|c: char| !c.is_alphanumeric()).any(|w| w == "test")
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}
