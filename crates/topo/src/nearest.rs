//! Finds the known name that is nearest to a mistyped one.

/// Returns the Levenshtein distance: the number of single-character edits from `a` to `b`.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let change = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// Returns the name in `known` that `wrong` most likely stands for.
///
/// Returns `None` if more than half of the letters differ: that is no typing mistake.
pub fn nearest<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = wrong.chars().count().div_ceil(2);
    known
        .into_iter()
        .map(|name| (distance(&wrong.to_lowercase(), &name.to_lowercase()), name))
        .filter(|(d, _)| *d <= limit)
        .min()
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn nearest__one_slip__finds_the_key() {
        assert_eq!(nearest("rat", ["rate", "delay", "loss"]), Some("rate"));
        assert_eq!(
            nearest("port_que", ["port_queue", "name"]),
            Some("port_queue")
        );
    }

    #[test]
    fn nearest__unrelated_word__offers_nothing() {
        assert_eq!(nearest("zzzz", ["rate", "delay"]), None);
    }
}
