//! The modules of a crate with their items, and what a path in one of them names.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use proc_macro2::Span;
use syn::{Attribute, Item, UseTree, Visibility};

/// Place of a module: its names from the crate's root on.
pub type ModulePath = Vec<String>;

/// Longest chain of `use` that is followed.
const DEPTH: u32 = 16;

/// A crate.
#[derive(Default)]
pub struct Crate {
    pub modules: BTreeMap<ModulePath, Module>,
}

/// A module.
#[derive(Default)]
pub struct Module {
    /// The text of its file.
    pub source: String,
    /// True for `pub mod` that is not hidden; the root is public.
    pub is_public: bool,
    pub items: BTreeMap<String, Item>,
    pub impls: Vec<syn::ItemImpl>,
    pub macros: Vec<syn::ItemMacro>,
    pub uses: BTreeMap<String, Use>,
}

/// A name that `use` brings in.
pub struct Use {
    pub path: Vec<String>,
    pub is_public: bool,
}

/// What a path names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Named {
    Module(ModulePath),
    Item(ModulePath, String),
    /// A path into another crate, or an item of a macro.
    Other(Vec<String>),
}

impl Crate {
    /// Reads the crate with this root file.
    pub fn read(root: &Path) -> Self {
        let source = fs::read_to_string(root).expect("a root file");
        let mut found = Self::default();
        found.add(Vec::new(), true, source, None, Some(root.parent().expect("a folder")));
        found
    }

    /// Reads a crate of one file.
    pub fn parse(source: &str) -> Self {
        let mut found = Self::default();
        found.add(Vec::new(), true, source.to_owned(), None, None);
        found
    }

    /// Adds the module `path`: `items`, or all of `source`. `folder` has the files of its modules.
    fn add(
        &mut self,
        path: ModulePath,
        is_public: bool,
        source: String,
        items: Option<Vec<Item>>,
        folder: Option<&Path>,
    ) {
        let items = items.unwrap_or_else(|| syn::parse_file(&source).expect("Rust").items);
        let mut module = Module { source, is_public, ..Module::default() };
        for item in items {
            if is_test(attributes(&item)) {
                continue;
            }
            match item {
                Item::Mod(item) => {
                    let name = item.ident.to_string();
                    let inner = [&path[..], std::slice::from_ref(&name)].concat();
                    let shown = is_public && is_shown(&item.vis, &item.attrs);
                    let below = folder.map(|folder| folder.join(&name));
                    let (source, items) = match (item.content, folder) {
                        (Some((_, items)), _) => (module.source.clone(), Some(items)),
                        (None, folder) => {
                            let folder = folder.expect("a crate of several files");
                            let files = [format!("{name}.rs"), format!("{name}/mod.rs")];
                            let file = files.map(|file| folder.join(file));
                            let file = file.into_iter().find(|file| file.exists());
                            let file = file.unwrap_or_else(|| panic!("no file of {inner:?}"));
                            (fs::read_to_string(file).expect("text"), None)
                        }
                    };
                    self.add(inner, shown, source, items, below.as_deref());
                }
                Item::Impl(item) => module.impls.push(item),
                Item::Macro(item) if item.ident.is_none() => module.macros.push(item),
                Item::Use(item) => {
                    let is_public = is_shown(&item.vis, &item.attrs);
                    flatten(&item.tree, &[], &mut |name, path| {
                        module.uses.insert(name, Use { path, is_public });
                    });
                }
                item => {
                    if let Some(name) = name(&item) {
                        module.items.insert(name, item);
                    }
                }
            }
        }
        self.modules.insert(path, module);
    }

    /// What `path` names in the module `at`; `None` for names of the prelude and type parameters.
    pub fn resolve(&self, at: &[String], path: &[String]) -> Option<Named> {
        self.resolve_within(at, path, DEPTH)
    }

    fn resolve_within(&self, at: &[String], path: &[String], depth: u32) -> Option<Named> {
        let depth = depth.checked_sub(1)?;
        let (first, rest) = path.split_first()?;
        let start = match first.as_str() {
            "crate" => Some(Named::Module(Vec::new())),
            "self" => Some(Named::Module(at.to_vec())),
            "super" => Some(Named::Module(at[..at.len() - 1].to_vec())),
            name => self.lookup(at, name, depth),
        };
        let mut named = match start {
            Some(named) => named,
            None if rest.is_empty() => return None,
            None => return Some(Named::Other(path.to_vec())),
        };
        for (index, name) in rest.iter().enumerate() {
            named = match named {
                Named::Module(at) if name == "super" => Named::Module(at[..at.len() - 1].to_vec()),
                Named::Module(at) => match self.lookup(&at, name, depth) {
                    Some(named) => named,
                    None => {
                        let rest = rest[index..].iter().cloned();
                        Named::Other(at.into_iter().chain(rest).collect())
                    }
                },
                Named::Item(..) => named, // An associated item or a variant.
                Named::Other(mut path) => {
                    path.push(name.clone());
                    Named::Other(path)
                }
            };
        }
        Some(named)
    }

    fn lookup(&self, at: &[String], name: &str, depth: u32) -> Option<Named> {
        let module = self.modules.get(at)?;
        let below = [at, &[name.to_owned()]].concat();
        if module.items.contains_key(name) {
            return Some(Named::Item(at.to_vec(), name.to_owned()));
        }
        match module.uses.get(name) {
            Some(found) => {
                let named = self.resolve_within(at, &found.path, depth);
                Some(named.unwrap_or_else(|| Named::Other(found.path.clone())))
            }
            None => self.modules.contains_key(&below).then_some(Named::Module(below)),
        }
    }
}

fn flatten(tree: &UseTree, before: &[String], add: &mut dyn FnMut(String, Vec<String>)) {
    let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
    match tree {
        UseTree::Path(path) => flatten(&path.tree, &with(&path.ident), add),
        UseTree::Name(name) if name.ident == "self" => {
            add(before.last().expect("a module").clone(), before.to_vec());
        }
        UseTree::Name(name) => add(name.ident.to_string(), with(&name.ident)),
        UseTree::Rename(name) if name.ident == "self" => {
            add(name.rename.to_string(), before.to_vec());
        }
        UseTree::Rename(name) => add(name.rename.to_string(), with(&name.ident)),
        UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, before, add)),
        UseTree::Glob(_) => {} // Of prelude modules only; nothing is re-exported so.
    }
}

/// Name of an item that has one of its own.
fn name(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

pub fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

pub fn visibility(item: &Item) -> &Visibility {
    match item {
        Item::Const(item) => &item.vis,
        Item::Enum(item) => &item.vis,
        Item::Fn(item) => &item.vis,
        Item::Static(item) => &item.vis,
        Item::Struct(item) => &item.vis,
        Item::Trait(item) => &item.vis,
        Item::Type(item) => &item.vis,
        Item::Union(item) => &item.vis,
        _ => &Visibility::Inherited,
    }
}

/// True for public items that rustdoc shows.
pub fn is_shown(visibility: &Visibility, attributes: &[Attribute]) -> bool {
    let is_hidden = |attribute: &Attribute| match &attribute.meta {
        syn::Meta::List(list) => list.path.is_ident("doc") && list.tokens.to_string() == "hidden",
        _ => false,
    };
    matches!(visibility, Visibility::Public(_)) && !attributes.iter().any(is_hidden)
}

/// The condition of `cfg`, if there is one.
pub fn condition(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => Some(list.tokens.to_string()),
        _ => None,
    })
}

fn is_test(attributes: &[Attribute]) -> bool {
    condition(attributes).is_some_and(|condition| condition == "test")
}

/// The lines of `span`, without indentation.
pub fn lines_of(source: &str, span: Span) -> Vec<String> {
    let (start, end) = (span.start(), span.end());
    let lines = source.lines().enumerate().skip(start.line - 1).take(end.line - start.line + 1);
    let part = |(index, line): (usize, &str)| {
        let from = if index + 1 == start.line { start.column } else { 0 };
        let to = if index + 1 == end.line { end.column } else { usize::MAX };
        line.chars().take(to).skip(from).collect::<String>().trim().to_owned()
    };
    lines.map(part).collect()
}

/// The source of `span` on one line.
pub fn text_of(source: &str, span: Span) -> String {
    let text = lines_of(source, span).join(" ");
    text.replace("( ", "(").replace(", )", ")").replace("< ", "<").replace(", >", ">")
}
