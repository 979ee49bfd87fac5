from tests.report import synthetic
def test_x(): assert synthetic.x == 1
