# Licensed to the Apache Software Foundation (ASF) under one
# or more contributor license agreements.  See the NOTICE file
# distributed with this work for additional information
# regarding copyright ownership.  The ASF licenses this file
# to you under the Apache License, Version 2.0 (the
# "License"); you may not use this file except in compliance
# with the License.  You may obtain a copy of the License at
#
#   http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing,
# software distributed under the License is distributed on an
# "AS IS" BASIS, WITHOUT WARRANTIES OR CONDITIONS OF ANY
# KIND, either express or implied.  See the License for the
# specific language governing permissions and limitations
# under the License.
"""A macro finds the parser that calls it without reading its callers' source files."""

import inspect

import tvm
import tvm.testing
from tvm.script import tirx as T


@T.macro
def store(to, place, value):
    to[place] = value


def test_macros_do_not_look_for_source(monkeypatch):
    original, contexts = inspect.getouterframes, []

    def count(frame, context=1):
        contexts.append(context)
        return original(frame, context)

    monkeypatch.setattr(inspect, "getouterframes", count)

    @T.prim_func
    def expected(a: T.Buffer((2,), "int32")):
        a[0] = 5
        a[1] = 7

    before = len(contexts)

    @T.prim_func
    def through_macros(a: T.Buffer((2,), "int32")):
        store(a, 0, 5)
        store(a, 1, 7)

    assert len(contexts) == 2 * before
    expected = expected.with_attr("global_symbol", "through_macros")
    tvm.ir.assert_structural_equal(through_macros, expected)


if __name__ == "__main__":
    tvm.testing.main()
