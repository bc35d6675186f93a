//! Says which symbols a release of rdma-core exports that the project's lists do not have.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

use crate::Result;

/// Options of `xtask symbols`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// A source tree of rdma-core
    #[arg(value_name = "PATH")]
    source: PathBuf,
}

/// A library: its .map file in rdma-core's sources, and the folder with the lists here.
const LIBRARIES: [(&str, &str); 2] = [
    ("libibverbs/libibverbs.map.in", "engine/libibverbs"),
    ("librdmacm/librdmacm.map", "engine/librdmacm"),
];

/// Runs the command. Exit code 1 if a symbol is missing in the lists.
pub fn main(options: Options) -> Result<u8> {
    let build = fs::read_to_string(options.source.join("CMakeLists.txt"))?;
    let value = |name: &str| -> Result<String> {
        let found = Regex::new(&format!(r#"set\({name} "(\d+)"#))?.captures(&build);
        let found = found.ok_or_else(|| format!("no {name} in rdma-core's CMakeLists.txt"))?;
        Ok(found[1].to_owned())
    };
    let (release, private) = (value("PACKAGE_VERSION")?, value("IBVERBS_PABI_VERSION")?);
    let mut count = 0;
    for (map, folder) in LIBRARIES {
        let text = fs::read_to_string(options.source.join(map))?;
        let text = text.replace("@IBVERBS_PABI_VERSION@", &private);
        let known = known(Path::new(folder))?;
        println!("# {folder}/symbols-after-44.txt");
        for (node, name) in exported(&text)? {
            if !known.contains(&(node.clone(), name.clone())) {
                println!("{release} {node} {name}");
                count += 1;
            }
        }
    }
    println!("# release {release}: {count} symbols that the lists lack");
    Ok(u8::from(count > 0))
}

/// Returns version node and name of each symbol in the project's lists.
fn known(folder: &Path) -> Result<BTreeSet<(String, String)>> {
    let of_44 = fs::read_to_string(folder.join("symbols-44.txt"))?;
    let later = fs::read_to_string(folder.join("symbols-after-44.txt"))?;
    let of_44 = of_44.lines().filter_map(|line| {
        let (name, node) = line.split_once(' ')?.1.split_once('@')?;
        Some((node.trim_start_matches('@').to_owned(), name.to_owned()))
    });
    let later = later.lines().filter_map(|line| {
        let [_, node, name] = line.split(' ').collect::<Vec<_>>().try_into().ok()?;
        Some((node.to_owned(), name.to_owned()))
    });
    Ok(of_44.chain(later).collect())
}

/// Returns version node and name of each symbol in a .map file, in its order.
fn exported(map: &str) -> Result<Vec<(String, String)>> {
    let map = Regex::new(r"(?s)/\*.*?\*/")?.replace_all(map, "").into_owned();
    let (nodes, names) = (Regex::new(r"(?s)([\w.]+)\s*\{(.*?)\}")?, Regex::new(r"(\w+)\s*;")?);
    let mut found = Vec::new();
    for node in nodes.captures_iter(&map) {
        let global = node[2].split("local:").next().unwrap_or("");
        for name in names.captures_iter(global) {
            found.push((node[1].to_owned(), name[1].to_owned()));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_file_is_read_without_comments_and_local_symbols() {
        let map = "/* head; */ A_1.0 {\n global:\n  one; /* two; */\n  three;\n local: *;\n};\n\
                   A_1.1 {\n global:\n  one;\n} A_1.0;\n";
        let wanted = [("A_1.0", "one"), ("A_1.0", "three"), ("A_1.1", "one")];
        let wanted = wanted.map(|(node, name)| (node.to_owned(), name.to_owned()));
        assert_eq!(exported(map).unwrap(), wanted);
    }
}
