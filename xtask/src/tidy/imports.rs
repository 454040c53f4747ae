//! Checks that imports between the files of a crate have no circle.
//!
//! A folder is one concept: references between a module and the modules that contain it are not
//! counted. Re-exports and tests are not counted either.

use super::{File, Finding};
use std::collections::{BTreeMap, BTreeSet};

/// Module path from the crate's root; empty for the root.
type Module = Vec<String>;

/// References of each module to others of the crate.
type References = BTreeMap<Module, BTreeSet<Module>>;

pub fn check(files: &[File], findings: &mut Vec<Finding>) {
    let mut crates: BTreeMap<&str, Vec<(Module, &File)>> = BTreeMap::new();
    for file in files {
        if let Some((name, module)) = module_of(&file.path) {
            crates.entry(name).or_default().push((module, file));
        }
    }
    for modules in crates.values() {
        let known: BTreeSet<Module> = modules.iter().map(|(module, _)| module.clone()).collect();
        let references: References = modules
            .iter()
            .map(|(module, file)| (module.clone(), references(module, &file.text, &known)))
            .collect();
        for (module, file) in modules {
            if let Some(circle) = shortest_circle(module, &references) {
                let names: Vec<String> = circle.iter().map(|module| module.join("/")).collect();
                let circle = names.join(" → ");
                findings.push(file.finding(1, format!("circle of imports: {circle}")));
            }
        }
    }
}

/// Returns the crate and the module of a source file; `None` for tests and for other files.
fn module_of(path: &str) -> Option<(&str, Module)> {
    let (name, inner) = path.strip_prefix("crates/")?.split_once("/src/")?;
    let mut module: Module = inner
        .strip_suffix(".rs")?
        .split('/')
        .map(str::to_owned)
        .collect();
    let last = module.last().map(String::as_str);
    match last {
        Some("tests") => return None,
        Some("mod" | "lib" | "main") => drop(module.pop()),
        _ => {}
    }
    Some((name, module))
}

/// Returns the modules in `known` that a file refers to, except its own ancestors and descendants.
fn references(module: &Module, text: &str, known: &BTreeSet<Module>) -> BTreeSet<Module> {
    let code: String = text
        .split("\n#[cfg(test)]\nmod tests")
        .next()
        .unwrap_or(text)
        .lines()
        .filter_map(|line| line.split("//").next())
        .flat_map(|line| [line, "\n"])
        .collect();
    let mut targets = BTreeSet::new();
    for statement in code.split(';') {
        let start = statement.rfind("use ").filter(|offset| {
            let prefix = statement[..*offset].trim_end_matches([' ', '\n']);
            prefix.is_empty() || prefix.ends_with(['}', ']', ')'])
        });
        let paths = match start {
            Some(offset) if !statement[..offset].trim_end().ends_with(')') => {
                expand(&statement[offset + 4..])
            }
            Some(_) => continue, // `pub(crate) use`, a re-export
            None if statement.trim_start().starts_with("pub use ") => continue,
            None => statement_paths(statement),
        };
        for path in paths {
            let Some(target) = resolve(module, &path, known) else {
                continue;
            };
            if !target.starts_with(module) && !module.starts_with(&target) {
                targets.insert(target);
            }
        }
    }
    targets
}

/// Returns the paths in a statement that start with `crate`, `super` or `self`, or with a name.
fn statement_paths(statement: &str) -> Vec<String> {
    statement
        .split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':')
        .filter(|word| word.contains("::"))
        .map(str::to_owned)
        .collect()
}

/// Returns the paths of a `use` tree.
fn expand(tree: &str) -> Vec<String> {
    let tree = tree.trim();
    let Some((head, tail)) = tree.split_once('{') else {
        return vec![tree.split(" as ").next().unwrap_or(tree).trim().to_owned()];
    };
    let body = tail.rsplit_once('}').map_or(tail, |(body, _)| body);
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (offset, c) in body.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&body[start..offset]);
                start = offset + 1;
            }
            _ => {}
        }
    }
    parts.push(&body[start..]);
    let parts = parts.into_iter().filter(|part| !part.trim().is_empty());
    parts
        .flat_map(|part| expand(&format!("{}{}", head.trim(), part.trim())))
        .collect()
}

/// Returns the innermost known module that `path` in a file of `module` leads to.
fn resolve(module: &Module, path: &str, known: &BTreeSet<Module>) -> Option<Module> {
    let mut segments = path.split("::").peekable();
    let mut base: Module = match *segments.peek()? {
        "crate" => {
            segments.next();
            Vec::new()
        }
        "self" => {
            segments.next();
            module.clone()
        }
        "super" => {
            let mut base = module.clone();
            while segments.next_if_eq(&"super").is_some() {
                base.pop();
            }
            base
        }
        _ => return None,
    };
    for segment in segments {
        base.push(segment.to_owned());
        if !known.contains(&base) {
            base.pop();
            break;
        }
    }
    Some(base)
}

/// Returns the shortest circle from `start` back to itself, both ends included. Each circle is
/// reported once, at its first module in alphabetical order.
fn shortest_circle(start: &Module, references: &References) -> Option<Vec<Module>> {
    let mut predecessors: BTreeMap<&Module, &Module> = BTreeMap::new();
    let mut level = vec![start];
    while !level.is_empty() {
        let mut next = Vec::new();
        for module in level {
            for target in references.get(module).into_iter().flatten() {
                if target == start {
                    let mut circle = vec![start.clone(), module.clone()];
                    let mut current = module;
                    while let Some(predecessor) = predecessors.get(current) {
                        circle.push((*predecessor).clone());
                        current = predecessor;
                    }
                    if *circle.last()? != *start {
                        circle.push(start.clone());
                    }
                    circle.reverse();
                    let is_first = circle.iter().all(|module| start <= module);
                    return is_first.then_some(circle);
                }
                if target != start && !predecessors.contains_key(target) {
                    predecessors.insert(target, module);
                    next.push(target);
                }
            }
        }
        level = next;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::tree_messages;
    use super::*;

    fn messages(files: &[(&str, &str)]) -> Vec<String> {
        tree_messages(check, files)
    }

    #[test]
    fn imports__cycle_of_three_files__is_found_once() {
        let files = [
            ("crates/x/src/a.rs", "use crate::{b::B, d};\n"),
            ("crates/x/src/b.rs", "use super::c::C;\n"),
            ("crates/x/src/c/mod.rs", "fn f() -> crate::a::A {}\n"),
            ("crates/x/src/d.rs", "\n"),
        ];
        assert_eq!(messages(&files), ["circle of imports: a → b → c → a"]);
        assert!(messages(&files[1..]).is_empty());
    }

    #[test]
    fn imports__within_a_folder_or_in_tests__are_not_a_cycle() {
        let files = [
            (
                "crates/x/src/a/mod.rs",
                "mod b;\npub use b::B;\nfn f(_: b::B) {}\nstruct A;\n",
            ),
            ("crates/x/src/a/b.rs", "use super::A;\nuse crate::c::C;\n"),
            (
                "crates/x/src/c.rs",
                "struct C;\n\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n",
            ),
        ];
        assert_eq!(messages(&files), Vec::<String>::new());
    }
}
