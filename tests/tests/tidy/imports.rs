//! Import cycles: sets of files of one crate that depend on each other.
//!
//! A path is followed to the file that defines the item it names, through `use`, `pub use` and
//! aliases of modules: a file that names `crate::qp::Qp` depends on the file of `Qp`, not on
//! `qp/mod.rs` that re-exports it. `mod` declarations and method calls are not followed. Tests
//! inside a file (`#[cfg(test)] mod tests`) do not count. Neither do names that a file takes from
//! its parent modules.

use std::collections::{BTreeMap, BTreeSet};

use super::source::Source;

/// Maximum number of re-exports that are followed from a path to its item.
const MAX_REEXPORTS: u32 = 8;

/// One file as a module of its crate.
struct Module<'a> {
    /// Path below the workspace's root.
    file: &'a str,
    /// Names of the items that the file defines.
    items: BTreeSet<String>,
    /// Names that `use` brings into the module, with their paths.
    aliases: BTreeMap<String, Vec<String>>,
    /// Paths of `use a::b::*`.
    globs: Vec<Vec<String>>,
    /// Every path that the file names, outside of its tests.
    paths: Vec<Vec<String>>,
}

/// The modules of a crate by their paths; the crate itself is the empty path.
struct Crate<'a>(BTreeMap<Vec<String>, Module<'a>>);

/// Import cycles: sets of at least two files that depend on each other, in order of their names.
pub fn cycles(sources: &[Source]) -> Vec<Vec<String>> {
    let mut crates: BTreeMap<&str, Vec<&Source>> = BTreeMap::new();
    for source in sources {
        if let Some((folder, _)) = source.path.rsplit_once("/src/")
            && !source.path.contains("/src/bin/")
        {
            crates.entry(folder).or_default().push(source);
        }
    }
    let mut found = Vec::new();
    for (folder, files) in crates {
        let files = files.into_iter().map(|source| (module_path(folder, &source.path), source));
        let modules = files.map(|(path, source)| (path, Module::new(source))).collect();
        found.extend(strongly_connected(&Crate(modules).imports()));
    }
    found
}

/// The path of the module in `file`, a file below `folder`/src.
fn module_path(folder: &str, file: &str) -> Vec<String> {
    let below = file.strip_prefix(&format!("{folder}/src/")).expect("a file of the crate");
    let mut path: Vec<_> =
        below.trim_end_matches(".rs").split('/').map(ToOwned::to_owned).collect();
    let is_root = path.len() == 1 && (path[0] == "lib" || path[0] == "main");
    if is_root || path.last().is_some_and(|name| name == "mod") {
        path.pop();
    }
    path
}

impl<'a> Module<'a> {
    fn new(source: &'a Source) -> Self {
        let paths = source.paths_without_tests.iter();
        let mut module = Self {
            file: &source.path,
            items: source.items.clone(),
            aliases: BTreeMap::new(),
            globs: Vec::new(),
            paths: paths.map(|(path, _)| segments(path)).collect(),
        };
        for (path, name) in &source.uses {
            match name {
                Some(name) => drop(module.aliases.insert(name.clone(), segments(path))),
                None => module.globs.push(segments(path)),
            }
        }
        module
    }
}

fn segments(path: &str) -> Vec<String> {
    path.split("::").map(ToOwned::to_owned).collect()
}

impl Crate<'_> {
    /// The files that each file takes names from.
    fn imports(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut imports: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (at, module) in &self.0 {
            let all = module.paths.iter().chain(module.aliases.values());
            let named = all.filter_map(|path| self.resolve(at, path, MAX_REEXPORTS));
            let named: BTreeSet<_> = named.collect();
            let parents = (0..=at.len()).filter_map(|len| self.0.get(&at[..len]));
            let parents: BTreeSet<&str> = parents.map(|module| module.file).collect();
            imports.insert(module.file, named.difference(&parents).copied().collect());
        }
        imports
    }

    /// The file that defines what `path` names, seen from the module `at`. `depth` bounds how many
    /// re-exports are followed.
    fn resolve(&self, at: &[String], path: &[String], depth: u32) -> Option<&str> {
        if depth == 0 {
            return None;
        }
        let (mut place, mut rest) = match path[0].as_str() {
            "crate" => (Vec::new(), &path[1..]),
            "self" => (at.to_vec(), &path[1..]),
            "super" => {
                let up = path.iter().take_while(|name| *name == "super").count();
                (at[..at.len().checked_sub(up)?].to_vec(), &path[up..])
            }
            first => {
                let child = [at, &[first.to_owned()]].concat();
                if self.0.contains_key(&child) {
                    (at.to_vec(), path)
                } else {
                    let alias = self.0.get(at)?.aliases.get(first)?;
                    if alias.first() == path.first() && alias.len() == 1 {
                        return None;
                    }
                    return self.resolve(at, &[alias, &path[1..]].concat(), depth - 1);
                }
            }
        };
        while let Some((name, after)) = rest.split_first() {
            place.push(name.clone());
            if !self.0.contains_key(&place) {
                place.pop();
                break;
            }
            rest = after;
        }
        // If the path ends at a module, `find` returns None: paths to its items are counted
        // separately.
        self.find(&place, rest, depth)
    }

    /// The file that defines `rest`, an item of the module `place` and what follows it.
    fn find(&self, place: &[String], rest: &[String], depth: u32) -> Option<&str> {
        let (name, after) = rest.split_first()?;
        let module = self.0.get(place)?;
        if module.items.contains(name) {
            return Some(module.file);
        }
        if let Some(alias) = module.aliases.get(name) {
            return self.resolve(place, &[alias, after].concat(), depth - 1);
        }
        let from_glob =
            |glob: &Vec<String>| self.resolve(place, &[glob.as_slice(), rest].concat(), depth - 1);
        module.globs.iter().find_map(from_glob)
    }
}

/// Sets of files that reach each other, of two or more.
fn strongly_connected(imports: &BTreeMap<&str, BTreeSet<&str>>) -> Vec<Vec<String>> {
    let reach = |from: &str| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from.to_owned()]);
        while let Some(file) = next.pop() {
            for other in imports.get(file.as_str()).into_iter().flatten() {
                if seen.insert((*other).to_owned()) {
                    next.push((*other).to_owned());
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&str, BTreeSet<String>> =
        imports.keys().map(|file| (*file, reach(file))).collect();
    let mut cycles = BTreeSet::new();
    for (file, others) in &reached {
        let both_ways = |other: &&String| reached[other.as_str()].contains(*file);
        let cycle: Vec<String> = others.iter().filter(both_ways).cloned().collect();
        if cycle.len() > 1 {
            cycles.insert(cycle);
        }
    }
    cycles.into_iter().collect()
}
