//! Slurm's host lists.

use crate::network::HOSTS_MAX;

/// Most names that a list such as `n[1-16]` may expand to.
const NAMES_MAX: usize = HOSTS_MAX;

/// Expands `n[1-3,7],m` to `n1`, `n2`, `n3`, `n7`, `m`. `n[08-10]` keeps leading zeros.
pub fn expand(list: &str) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for part in split_outside_brackets(list) {
        let Some((stem, suffix)) = part.split_once('[') else {
            names.push(part.to_owned());
            continue;
        };
        let Some((ranges, tail)) = suffix.split_once(']') else {
            return Err(format!("`{part}` has no closing `]`"));
        };
        if tail.contains('[') {
            return Err(format!(
                "`{part}` has more than one [ ]; write one entry for each"
            ));
        }
        for range in ranges.split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let bounds = first.parse::<u64>().ok().zip(last.parse::<u64>().ok());
            let Some((from, to)) = bounds.filter(|(from, to)| from <= to) else {
                return Err(format!(
                    "`{range}` is not a range: expected for instance `1-16`"
                ));
            };
            if to - from >= (NAMES_MAX - names.len().min(NAMES_MAX)) as u64 {
                return Err(format!(
                    "`{part}` expands the list to more than {NAMES_MAX} names"
                ));
            }
            let width = first.len();
            names.extend((from..=to).map(|number| format!("{stem}{number:0width$}{tail}")));
        }
    }
    Ok(names)
}

fn split_outside_brackets(list: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut depth) = (0, 0_u32);
    for (index, c) in list.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&list[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[start..]);
    parts.retain(|part| !part.is_empty());
    parts
}
