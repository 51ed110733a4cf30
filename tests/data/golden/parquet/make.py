"""Writes the Parquet files of parquet_test.cpp with pyarrow (26.0.1)."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).parent


def write(name, columns, **settings):
    pq.write_table(pa.table(columns), HERE / name, **settings)


TEXTS = ["first", "", None, "f\u00fcnf \u4f60\u597d", "x" * 40]
ROWS = [[65, 66, 67], [68, 256], [69]]
write("text.parquet", {"id": list(range(5)), "text": TEXTS, "tags": [["a"]] * 5}, row_group_size=2)
write("large.parquet", {"text": pa.array(TEXTS, pa.large_string())}, compression="none")
write("ids.parquet", {"input_ids": pa.array(ROWS, pa.list_(pa.int32())), "source": ["a", "b", "c"]}, row_group_size=2)
write(
    "labels.parquet",
    {
        "input_ids": pa.array(ROWS, pa.large_list(pa.uint16())),
        "labels": pa.array([[-100, 66, 67], [-100, 256], [-100]], pa.list_(pa.int64())),
    },
)
write(
    "nested.parquet",
    {
        "text": pa.array([[{"role": "user"}]], pa.list_(pa.struct([("role", pa.string())]))),
        "number": [1.5],
        "input_ids": [["a"]],
    },
)
write("null_id.parquet", {"input_ids": pa.array([[1, None]], pa.list_(pa.int32()))})
