//! A table and its plain-text form.

use std::fmt;

/// A table whose first column is text, aligned left, and whose other columns are figures, aligned
/// right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// One line saying what is shown and in what unit.
    pub title: String,
    /// Column headings.
    pub header: Vec<String>,
    /// Rows, each as long as the header.
    pub rows: Vec<Vec<String>>,
    /// What a reader must know of single figures: a line each, below the rows.
    pub notes: Vec<String>,
}

impl Table {
    /// An empty table.
    pub fn new(
        title: impl Into<String>,
        header: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        Self {
            title: title.into(),
            header: header.into_iter().map(Into::into).collect(),
            rows: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If the row is not as long as the header.
    pub fn push(&mut self, row: impl IntoIterator<Item = impl Into<String>>) {
        let row: Vec<String> = row.into_iter().map(Into::into).collect();
        assert_eq!(
            row.len(),
            self.header.len(),
            "row {row:?} does not fit header {:?}",
            self.header
        );
        self.rows.push(row);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = || std::iter::once(&self.header).chain(&self.rows);
        // Characters, not bytes: the micro sign takes two bytes and one column.
        let width = |column: usize| {
            lines()
                .map(|row| row[column].chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.header.len()).map(width).collect();
        writeln!(f, "{}", self.title)?;
        for (number, row) in lines().enumerate() {
            let mut text = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                text += &if column == 0 {
                    format!("  {cell:<width$}")
                } else {
                    format!("  {cell:>width$}")
                };
            }
            writeln!(f, "{}", text.trim_end())?;
            if number == 0 {
                writeln!(
                    f,
                    "  {}",
                    "-".repeat(widths.iter().sum::<usize>() + 2 * (widths.len() - 1))
                )?;
            }
        }
        for note in &self.notes {
            writeln!(f, "  {note}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_whatever_the_characters() {
        let mut table = Table::new("latency, µs", ["contender", "20 %"]);
        table.push(["probe 5 µs", "12.5"]);
        table.push(["none", "1300"]);
        table.notes.push("20 %: a note".to_owned());
        let expected = "\
latency, µs
  contender   20 %
  ----------------
  probe 5 µs  12.5
  none        1300
  20 %: a note
";
        assert_eq!(table.to_string(), expected);
    }

    #[test]
    #[should_panic(expected = "does not fit")]
    fn a_row_of_the_wrong_length_is_refused() {
        Table::new("", ["a", "b"]).push(["only one"]);
    }
}
