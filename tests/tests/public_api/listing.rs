//! The public interface of a crate as text, one line per item, field, variant and method.

use std::collections::{BTreeMap, BTreeSet};

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Fields, ImplItem, Item, Meta, TraitItem, Visibility};

use crate::modules::{
    Crate, ModulePath, Named, attributes, condition, is_shown, lines_of, text_of, visibility,
};

/// Crates that users have anyway. A type of any other crate in a signature must be re-exported.
const STANDARD: &[&str] = &["std", "core", "alloc"];

/// The interface of a crate.
pub struct Listing {
    /// The list.
    pub text: String,
    /// `item: type` for types in public signatures that users cannot name.
    pub unnameable: Vec<String>,
}

impl Listing {
    /// The interface of `found`.
    pub fn of(found: &Crate) -> Self {
        let mut names = Names::default();
        names.collect(found);
        let mut entries = names.entries.clone();
        let mut unnameable = BTreeSet::new();
        let impls = impls(found);
        for ((module, name), shown) in &names.items {
            let entry = Entry::of(found, &impls, module, name, shown);
            let hidden = entry.types.iter().filter(|path| !names.can_name(found, module, path));
            unnameable.extend(hidden.map(|path| format!("{shown}: {}", path.join("::"))));
            entries.insert(entry.head, entry.lines);
        }
        let mut text = String::new();
        for (head, lines) in entries {
            text += &format!("{head}\n");
            text.extend(lines.iter().map(|line| format!("    {line}\n")));
        }
        Self { text, unnameable: unnameable.into_iter().collect() }
    }
}

/// The public names of a crate.
#[derive(Default)]
struct Names {
    /// Items by their place, with the name under which users find them.
    items: BTreeMap<(ModulePath, String), String>,
    /// Last words of re-exported paths into other crates.
    others: BTreeSet<String>,
    /// Finished entries: modules, macros, further names of items.
    entries: BTreeMap<String, BTreeSet<String>>,
}

impl Names {
    fn collect(&mut self, found: &Crate) {
        for (path, module) in found.modules.iter().filter(|(_, module)| module.is_public) {
            if !path.is_empty() {
                self.entries.insert(format!("mod {}", path.join("::")), BTreeSet::new());
            }
            for (name, item) in &module.items {
                if is_shown(visibility(item), attributes(item)) {
                    self.add(path.clone(), name.clone(), &joined(path, name));
                }
            }
            for item in &module.macros {
                let name = item.mac.path.segments.last().expect("a name").ident.to_string();
                let rows = lines_of(&module.source, item.mac.tokens.span()).into_iter();
                let rows = rows.filter(|row| !row.starts_with("//") && !row.is_empty());
                self.entries.insert(format!("macro {}!", joined(path, &name)), rows.collect());
            }
        }
        // Re-exports come second, so that an item has the path of its definition if that path is
        // public.
        for (path, module) in found.modules.iter().filter(|(_, module)| module.is_public) {
            for (name, found_use) in module.uses.iter().filter(|(_, found)| found.is_public) {
                let shown = joined(path, name);
                match found.resolve(path, &found_use.path) {
                    Some(Named::Item(module, name)) => self.add(module, name, &shown),
                    Some(Named::Module(of)) => self.alias(&shown, &of.join("::")),
                    Some(Named::Other(of)) => {
                        self.others.insert(of.last().expect("a name").clone());
                        self.alias(&shown, &of.join("::"));
                    }
                    None => self.alias(&shown, &found_use.path.join("::")),
                }
            }
        }
    }

    fn add(&mut self, module: ModulePath, name: String, shown: &str) {
        match self.items.get(&(module.clone(), name.clone())) {
            Some(of) => self.alias(shown, &of.clone()),
            None => drop(self.items.insert((module, name), shown.to_owned())),
        }
    }

    fn alias(&mut self, shown: &str, of: &str) {
        self.entries.insert(format!("use {shown} = {of}"), BTreeSet::new());
    }

    /// Returns true if users can name `path` of the module `at`.
    fn can_name(&self, found: &Crate, at: &[String], path: &[String]) -> bool {
        match found.resolve(at, path) {
            None | Some(Named::Module(_)) => true,
            Some(Named::Item(module, name)) => self.items.contains_key(&(module, name)),
            Some(Named::Other(path)) => {
                let of_macro = found.modules.get(&path[..path.len() - 1]);
                STANDARD.contains(&path[0].as_str())
                    || self.others.contains(path.last().expect("a name"))
                    || of_macro.is_some_and(|module| module.is_public)
            }
        }
    }
}

fn joined(path: &[String], name: &str) -> String {
    [path, &[name.to_owned()]].concat().join("::")
}

/// An item and everything public in it.
struct Entry {
    head: String,
    lines: BTreeSet<String>,
    /// Paths of types in signatures.
    types: BTreeSet<Vec<String>>,
}

impl Entry {
    fn of(found: &Crate, impls: &Impls<'_>, at: &ModulePath, name: &str, shown: &str) -> Self {
        let module = &found.modules[at];
        let item = &module.items[name];
        let mut reader = Reader { source: &module.source, ..Reader::default() };
        let word = reader.read(item);
        reader.lines.extend(condition(attributes(item)).map(|text| format!("cfg({text})")));
        let head = format!("{word} {shown}{}", reader.generics);
        let own = Named::Item(at.clone(), name.to_owned());
        for (path, block) in impls.get(&own).into_iter().flatten() {
            let source = &found.modules[*path].source;
            let mut inner = Reader { source, ..Reader::default() };
            inner.read_impl(block);
            reader.lines.append(&mut inner.lines);
            let types = inner.types.into_iter().map(|words| absolute(found, path, words));
            reader.types.extend(types);
        }
        Self { head, lines: reader.lines, types: reader.types }
    }
}

/// The `impl` blocks of each item, with the modules that have them.
type Impls<'a> = BTreeMap<Named, Vec<(&'a ModulePath, &'a syn::ItemImpl)>>;

fn impls(found: &Crate) -> Impls<'_> {
    let mut impls = Impls::new();
    for (path, module) in &found.modules {
        for block in &module.impls {
            let syn::Type::Path(of) = &*block.self_ty else { continue };
            if let Some(of) = found.resolve(path, &words(&of.path)) {
                impls.entry(of).or_default().push((path, block));
            }
        }
    }
    impls
}

/// `words` of the module `at` as a path from the crate's root, if they name an item of the crate.
fn absolute(found: &Crate, at: &[String], words: Vec<String>) -> Vec<String> {
    match found.resolve(at, &words) {
        Some(Named::Item(module, name)) => [&["crate".to_owned()], &module[..], &[name]].concat(),
        Some(Named::Other(path)) if path.len() > 1 => path,
        _ => words,
    }
}

/// Reads signatures out of syntax.
#[derive(Default)]
struct Reader<'a> {
    source: &'a str,
    generics: String,
    lines: BTreeSet<String>,
    types: BTreeSet<Vec<String>>,
}

impl Reader<'_> {
    fn text(&self, node: &impl Spanned) -> String {
        text_of(self.source, node.span())
    }

    fn line(&mut self, line: String) {
        self.lines.insert(line);
    }

    /// Reads an item; returns its keyword.
    fn read(&mut self, item: &Item) -> &'static str {
        self.derives(attributes(item));
        match item {
            Item::Struct(item) => {
                self.generics = self.text(&item.generics);
                for field in &item.fields {
                    match (&field.vis, &field.ident) {
                        (Visibility::Public(_), name) => {
                            self.visit_type(&field.ty);
                            let name = name.as_ref().map_or("pub".to_owned(), ToString::to_string);
                            let line = format!("{name}: {}", self.text(&field.ty));
                            self.line(line);
                        }
                        _ => self.line("..".to_owned()),
                    }
                }
                "struct"
            }
            Item::Enum(item) => {
                self.generics = self.text(&item.generics);
                for variant in &item.variants {
                    let line = format!("{}{}", variant.ident, self.fields(&variant.fields));
                    self.line(line);
                }
                "enum"
            }
            Item::Trait(item) => {
                for inner in &item.items {
                    self.read_trait(inner);
                }
                "trait"
            }
            Item::Fn(item) => {
                self.visit_signature(&item.sig);
                let line = self.text(&item.sig);
                self.line(line);
                "fn"
            }
            Item::Const(item) => {
                self.visit_type(&item.ty);
                let line = format!(": {}", self.text(&item.ty));
                self.line(line);
                "const"
            }
            Item::Static(item) => {
                self.visit_type(&item.ty);
                let line = format!(": {}", self.text(&item.ty));
                self.line(line);
                "static"
            }
            Item::Type(item) => {
                self.visit_type(&item.ty);
                let line = format!("= {}", self.text(&item.ty));
                self.line(line);
                "type"
            }
            _ => "item",
        }
    }

    fn derives(&mut self, attributes: &[Attribute]) {
        for attribute in attributes {
            match &attribute.meta {
                Meta::List(list) if list.path.is_ident("derive") => {
                    let line = self.text(list);
                    self.line(line);
                }
                Meta::Path(path) if path.is_ident("non_exhaustive") => {
                    self.line("non_exhaustive".to_owned());
                }
                _ => {}
            }
        }
    }

    /// The fields of a variant, which are as public as the variant.
    fn fields(&mut self, fields: &Fields) -> String {
        let types = fields.iter().map(|field| &field.ty);
        types.clone().for_each(|kind| self.visit_type(kind));
        let types: Vec<_> = fields
            .iter()
            .map(|field| match &field.ident {
                Some(name) => format!("{name}: {}", self.text(&field.ty)),
                None => self.text(&field.ty),
            })
            .collect();
        match fields {
            Fields::Unit => String::new(),
            Fields::Unnamed(_) => format!("({})", types.join(", ")),
            Fields::Named(_) => format!(" {{ {} }}", types.join(", ")),
        }
    }

    fn read_trait(&mut self, item: &TraitItem) {
        let line = match item {
            TraitItem::Fn(item) => {
                self.visit_signature(&item.sig);
                self.text(&item.sig)
            }
            TraitItem::Const(item) => format!("const {}: {}", item.ident, self.text(&item.ty)),
            TraitItem::Type(item) => format!("type {}", item.ident),
            _ => return,
        };
        self.line(line);
    }

    fn read_impl(&mut self, block: &syn::ItemImpl) {
        if let Some((_, of, _)) = &block.trait_ {
            let condition = condition(&block.attrs);
            let condition = condition.map_or_else(String::new, |text| format!("#[cfg({text})] "));
            let line = format!("{condition}impl {}", self.text(of));
            return self.line(line);
        }
        for item in &block.items {
            let line = match item {
                ImplItem::Fn(item) if is_shown(&item.vis, &item.attrs) => {
                    self.visit_signature(&item.sig);
                    self.text(&item.sig)
                }
                ImplItem::Const(item) if is_shown(&item.vis, &item.attrs) => {
                    self.visit_type(&item.ty);
                    format!("const {}: {}", item.ident, self.text(&item.ty))
                }
                _ => continue,
            };
            self.line(line);
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_type_path(&mut self, path: &'ast syn::TypePath) {
        let path_words = words(&path.path);
        if path_words[0] != "Self" && path.qself.is_none() {
            self.types.insert(path_words);
        }
        visit::visit_type_path(self, path);
    }
}

fn words(path: &syn::Path) -> Vec<String> {
    path.segments.iter().map(|segment| segment.ident.to_string()).collect()
}
