//! The text files of the workspace, and what the rules need to know about them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// Folders that are not checked: build outputs and those of version control.
const SKIPPED: [&str; 4] = ["target", ".git", "corpus", "artifacts"];

/// Extensions of text files.
const TEXT: [&str; 6] = ["rs", "toml", "md", "sh", "py", "txt"];

/// The workspace's root.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ is in the workspace")
}

/// A Rust file.
pub struct Source {
    /// Path below the root.
    pub path: String,
    /// The contents.
    pub text: String,
    /// Every function with a body.
    pub functions: Vec<Function>,
    /// Every struct with the names of its public fields.
    pub structs: Vec<(String, Vec<String>)>,
    /// Names of the items that the file defines, outside of its tests.
    pub items: BTreeSet<String>,
    /// Every `use` outside of tests: the path and its name in this file; `None` for `use path::*`.
    pub uses: Vec<(String, Option<String>)>,
    /// Number of lines, without those of `#[cfg(test)]` modules.
    pub lines_without_tests: usize,
    /// Lines with `unsafe`, also those in macro calls.
    pub unsafe_lines: Vec<usize>,
    /// Every string literal outside of tests and macro calls, with its line.
    pub strings_without_tests: Vec<(String, usize)>,
    /// Every path that the file names outside of its tests, `use` trees flattened, with its line.
    pub paths_without_tests: Vec<(String, usize)>,
}

/// A function and its length.
#[derive(Debug)]
pub struct Function {
    /// The name.
    pub name: String,
    /// Lines from the signature to the closing brace.
    pub lines: usize,
}

/// Every Rust file of the workspace, parsed once for all tests.
pub fn rust_sources() -> &'static [Source] {
    static SOURCES: LazyLock<Vec<Source>> = LazyLock::new(|| {
        let files = text_files().into_iter().filter(|(path, _)| path.ends_with(".rs"));
        files.map(|(path, text)| Source::parse(&path, text)).collect()
    });
    assert!(SOURCES.len() > 50, "the workspace was found");
    &SOURCES
}

/// Every text file of the workspace: path below the root, and text.
pub fn text_files() -> Vec<(String, String)> {
    let mut paths = Vec::new();
    collect(root(), &mut paths);
    paths.sort();
    let below = |path: &Path| path.strip_prefix(root()).expect("below").display().to_string();
    paths
        .iter()
        .map(|path| (below(path), fs::read_to_string(path).expect("a text file is UTF-8")))
        .collect()
}

/// The comments of a TOML file, with their line numbers. Its values are data.
pub fn comment_lines(text: &str) -> Vec<(usize, &str)> {
    (1..).zip(text.lines()).filter(|(_, line)| line.trim_start().starts_with('#')).collect()
}

/// The lines of a Markdown page that are neither tables nor code, with their line numbers.
pub fn prose_lines(text: &str) -> Vec<(usize, &str)> {
    let mut in_code = false;
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        if !(is_fence || in_code || line.starts_with('|') || line.starts_with("    ")) {
            lines.push((number, line));
        }
    }
    lines
}

/// The code in a Markdown page: inline code and code blocks.
pub fn code_spans(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The targets of the links of a Markdown page, with their line numbers; links to the web apart.
pub fn links(text: &str) -> Vec<(usize, &str)> {
    let mut in_code = false;
    let mut links = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        in_code ^= line.trim_start().starts_with("```");
        if in_code || line.starts_with("    ") && !line.trim_start().starts_with("- ") {
            continue;
        }
        for (at, _) in line.match_indices("](") {
            let is_code = line[..at].matches('`').count() % 2 == 1;
            let target = line[at + 2..].split(')').next().unwrap_or_default();
            if !is_code && !target.contains("://") {
                links.push((number, target));
            }
        }
    }
    links
}

/// The path below the root of `target`, a relative link of `page`.
pub fn relative(page: &str, target: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in target.split('/').filter(|part| *part != ".") {
        match part {
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

/// The anchors of a Markdown page: its headings as GitHub and mdBook name them.
pub fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for (_, line) in prose_lines(text) {
        let level = line.len() - line.trim_start_matches('#').len();
        if !(1..=6).contains(&level) || !line[level..].starts_with(' ') {
            continue;
        }
        let kept = line[level..].trim().chars().filter_map(|c| match c {
            ' ' => Some('-'),
            _ => (c.is_alphanumeric() || c == '-' || c == '_').then(|| c.to_ascii_lowercase()),
        });
        let slug: String = kept.collect();
        let is_new = |slug: &String| !anchors.contains(slug);
        let numbered = (1..).map(|n| format!("{slug}-{n}"));
        let slug = std::iter::once(slug.clone()).chain(numbered).find(is_new);
        anchors.extend(slug);
    }
    anchors
}

/// Returns true for the name or path of a text file, without placeholders such as `*` or `NAME`.
pub fn is_file_name(word: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    let Some((stem, extension)) = word.rsplit_once('.') else { return false };
    TEXT.contains(&extension)
        && !stem.is_empty()
        && !word.contains("NAME")
        && word.chars().all(is_plain)
}

/// Returns true for a name of two or more lower-case words.
pub fn is_snake_case(word: &str) -> bool {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    word.contains('_')
        && word.starts_with(|c: char| c.is_ascii_lowercase())
        && word.chars().all(is_part)
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let entry = entry.expect("an entry");
        let (path, name) = (entry.path(), entry.file_name());
        let kind = entry.file_type().expect("a type");
        if kind.is_dir() && !SKIPPED.iter().any(|skipped| name == *skipped) {
            collect(&path, paths);
        } else if kind.is_file()
            && path.extension().is_some_and(|ext| TEXT.iter().any(|text| ext == *text))
        {
            paths.push(path);
        }
    }
}

impl Source {
    /// Parses a file.
    ///
    /// # Panics
    /// If it is not Rust.
    pub fn parse(path: &str, text: String) -> Self {
        let syntax = syn::parse_file(&text);
        let syntax = syntax.unwrap_or_else(|error| panic!("{path}: {error}"));
        let (tests, products): (Vec<_>, Vec<_>) = syntax.items.iter().partition(is_test_module);
        let lines = |item: &syn::Item| item.span().end().line - item.span().start().line + 1;
        let mut functions = Functions(Vec::new());
        functions.visit_file(&syntax);
        let (mut strings, mut paths) = (Strings(Vec::new()), Paths(Vec::new()));
        for item in &products {
            strings.visit_item(item);
            paths.visit_item(item);
        }
        let mut uses = Vec::new();
        for item in &syntax.items {
            if let syn::Item::Use(item) = item {
                flatten_names(&item.tree, "", &mut uses);
            }
        }
        let mut unsafe_lines = Vec::new();
        find_unsafe(text.parse().expect("it was parsed before"), &mut unsafe_lines);
        Self {
            path: path.to_owned(),
            functions: functions.0,
            structs: syntax.items.iter().filter_map(fields).collect(),
            items: products.iter().copied().filter_map(name_of).collect(),
            uses,
            lines_without_tests: text.lines().count() - tests.into_iter().map(lines).sum::<usize>(),
            unsafe_lines,
            strings_without_tests: strings.0,
            paths_without_tests: paths.0,
            text,
        }
    }

    /// Returns true if the whole file is a test.
    pub fn is_test(&self) -> bool {
        self.path.starts_with("tests/") || self.path.contains("/tests/")
    }
}

/// The name of a struct and those of its public fields.
fn fields(item: &syn::Item) -> Option<(String, Vec<String>)> {
    let syn::Item::Struct(item) = item else { return None };
    let is_public = |field: &&syn::Field| matches!(field.vis, syn::Visibility::Public(_));
    let names = item.fields.iter().filter(is_public).filter_map(|field| field.ident.as_ref());
    Some((item.ident.to_string(), names.map(ToString::to_string).collect()))
}

/// The name of an item that other files can name.
fn name_of(item: &syn::Item) -> Option<String> {
    let name = match item {
        syn::Item::Const(item) => &item.ident,
        syn::Item::Enum(item) => &item.ident,
        syn::Item::Fn(item) => &item.sig.ident,
        syn::Item::Macro(item) => item.ident.as_ref()?,
        syn::Item::Static(item) => &item.ident,
        syn::Item::Struct(item) => &item.ident,
        syn::Item::Trait(item) => &item.ident,
        syn::Item::TraitAlias(item) => &item.ident,
        syn::Item::Type(item) => &item.ident,
        syn::Item::Union(item) => &item.ident,
        // A module inside this file. A module with a file of its own is known by its path.
        syn::Item::Mod(item) if item.content.is_some() => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

fn is_test_module(item: &&syn::Item) -> bool {
    let syn::Item::Mod(module) = item else { return false };
    module.attrs.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Ident>().is_ok_and(|what| what == "test")
    })
}

struct Functions(Vec<Function>);

impl Functions {
    fn add(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let lines = body.span().end().line - signature.span().start().line + 1;
        self.0.push(Function { name: signature.ident.to_string(), lines });
    }
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.add(&function.sig, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.add(&function.sig, &function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(body) = &function.default {
            self.add(&function.sig, body);
        }
        visit::visit_trait_item_fn(self, function);
    }
}

struct Strings(Vec<(String, usize)>);

impl<'ast> Visit<'ast> for Strings {
    fn visit_lit_str(&mut self, literal: &'ast syn::LitStr) {
        self.0.push((literal.value(), literal.span().start().line));
    }
}

struct Paths(Vec<(String, usize)>);

impl<'ast> Visit<'ast> for Paths {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.0.push((names.join("::"), path.span().start().line));
        visit::visit_path(self, path);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        flatten(&item.tree, "", &mut self.0);
    }
}

fn flatten(tree: &syn::UseTree, before: &str, paths: &mut Vec<(String, usize)>) {
    match tree {
        syn::UseTree::Path(path) => {
            flatten(&path.tree, &format!("{before}{}::", path.ident), paths)
        }
        syn::UseTree::Group(group) => {
            group.items.iter().for_each(|tree| flatten(tree, before, paths));
        }
        syn::UseTree::Name(name) => {
            paths.push((format!("{before}{}", name.ident), name.span().start().line));
        }
        syn::UseTree::Rename(name) => {
            paths.push((format!("{before}{}", name.ident), name.span().start().line));
        }
        syn::UseTree::Glob(glob) => {
            paths.push((before.trim_end_matches("::").to_owned(), glob.span().start().line));
        }
    }
}

/// Like [`flatten`], with the name that each path gets in the file.
fn flatten_names(tree: &syn::UseTree, before: &str, uses: &mut Vec<(String, Option<String>)>) {
    let module = || before.trim_end_matches("::").to_owned();
    match tree {
        syn::UseTree::Path(path) => {
            flatten_names(&path.tree, &format!("{before}{}::", path.ident), uses);
        }
        syn::UseTree::Group(group) => {
            group.items.iter().for_each(|tree| flatten_names(tree, before, uses));
        }
        syn::UseTree::Name(name) if name.ident == "self" => {
            let module = module();
            let last = module.rsplit("::").next().map(ToOwned::to_owned);
            uses.push((module, last));
        }
        syn::UseTree::Name(name) => {
            uses.push((format!("{before}{}", name.ident), Some(name.ident.to_string())));
        }
        syn::UseTree::Rename(name) => {
            uses.push((format!("{before}{}", name.ident), Some(name.rename.to_string())));
        }
        syn::UseTree::Glob(_) => uses.push((module(), None)),
    }
}

/// Searches tokens, because the inside of a macro call has no syntax tree.
fn find_unsafe(tokens: TokenStream, lines: &mut Vec<usize>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => find_unsafe(group.stream(), lines),
            TokenTree::Ident(word) if word == "unsafe" => lines.push(word.span().start().line),
            _ => {}
        }
    }
}
